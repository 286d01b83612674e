//! Who gets a message: the subscribers of the filters that its Topic Name matches.

use std::collections::hash_map::Entry;

use rmqtt::types::{
    ClientId, HashMap, Id, IsOnline, NodeId, SharedGroup, SharedGroupType, SubRelations, SubRelationsMap,
    SubscriptionIdentifier, SubscriptionOptions, TopicFilter,
};

/// A filter's subscribers, as the engine's table has them.
pub(crate) type Subscribers = HashMap<ClientId, (Id, SubscriptionOptions)>;

/// A member of a shared subscription, in the shape in which the engine asks which one it is to be.
pub(crate) type Member = (NodeId, ClientId, SubscriptionOptions, Option<Vec<SubscriptionIdentifier>>, Option<IsOnline>);

/// The members of a filter's shared subscriptions, by Share Name. One of each gets the message.
pub(crate) type Groups = HashMap<SharedGroup, Vec<Member>>;

/// The recipients of one message.
///
/// A v5 client gets it once, at the highest QoS of its matching subscriptions (MQTT 5.0 §3.3.4) and with all their
/// identifiers; a v3 client once for each of them.
pub(crate) struct Recipients<'a> {
    publisher: &'a Id,
    /// nearly always one node
    nodes: Vec<(NodeId, SubRelations)>,
    /// Where the v5 clients stand. Only made when a second filter is looked at.
    v5: Option<HashMap<(NodeId, ClientId), usize>>,
}

impl<'a> Recipients<'a> {
    pub(crate) fn of(publisher: &'a Id) -> Self {
        Self { publisher, nodes: Vec::new(), v5: None }
    }

    pub(crate) fn publisher(&self) -> &Id {
        self.publisher
    }

    /// Adds the subscribers of a filter, and leaves those who share a subscription to the caller.
    pub(crate) fn add_filter(&mut self, filter: &TopicFilter, subscribers: &Subscribers) -> Groups {
        if self.v5.is_none() && !self.nodes.is_empty() {
            self.v5 = Some(self.index());
        }
        let mut groups = Groups::default();
        for (client_id, (id, options)) in subscribers {
            if options.no_local() == Some(true) && id == self.publisher {
                continue;
            }
            match options.shared_group() {
                Some(group) => {
                    let member = (id.node_id, client_id.clone(), options.clone(), None, None);
                    groups.entry(group.clone()).or_default().push(member);
                }
                None => self.add(filter, id.node_id, client_id.clone(), options.clone(), None, subscribers.len()),
            }
        }
        groups
    }

    /// Adds the chosen member of a shared subscription.
    pub(crate) fn add_member(&mut self, filter: &TopicFilter, member: Member, group: SharedGroupType) {
        let (node, client_id, options, _, _) = member;
        self.add(filter, node, client_id, options, Some(group), 1);
    }

    /// By node, as the engine wants them.
    pub(crate) fn into_map(self) -> SubRelationsMap {
        self.nodes.into_iter().collect()
    }

    fn add(
        &mut self,
        filter: &TopicFilter,
        node: NodeId,
        client_id: ClientId,
        options: SubscriptionOptions,
        group: Option<SharedGroupType>,
        expected: usize,
    ) {
        let at = self.nodes.iter().position(|(of, _)| *of == node).unwrap_or_else(|| {
            self.nodes.push((node, SubRelations::with_capacity(expected)));
            self.nodes.len() - 1
        });
        let recipients = &mut self.nodes[at].1;
        if let Some(v5) = self.v5.as_mut().filter(|_| options.is_v5()) {
            match v5.entry((node, client_id.clone())) {
                Entry::Occupied(known) => {
                    let (known_filter, _, known_options, identifiers, _) = &mut recipients[*known.get()];
                    if let Some(id) = options.subscription_identifier() {
                        identifiers.get_or_insert_default().push(id);
                    }
                    if options.qos_value() > known_options.qos_value() {
                        (*known_filter, *known_options) = (filter.clone(), options);
                    }
                    return;
                }
                Entry::Vacant(new) => {
                    new.insert(recipients.len());
                }
            }
        }
        let identifiers = options.subscription_identifier().map(|id| vec![id]);
        recipients.push((filter.clone(), client_id, options, identifiers, group));
    }

    fn index(&self) -> HashMap<(NodeId, ClientId), usize> {
        let of_node = |(node, recipients): &(NodeId, SubRelations)| {
            let node = *node;
            let v5 = recipients.iter().enumerate().filter(|(_, (_, _, options, _, _))| options.is_v5());
            v5.map(move |(at, (_, client_id, _, _, _))| ((node, client_id.clone()), at)).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of_node).collect()
    }
}

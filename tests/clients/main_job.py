"""The main job with paho-mqtt: TCP and WebSocket, 3.1.1 and 5. Addresses and accounts come from the environment."""

import os
import queue

import paho.mqtt.client as mqtt

HOST = "127.0.0.1"
WAIT = 15
USERID = os.environ["USERID"]
V2 = mqtt.CallbackAPIVersion.VERSION2


class Client:
    def __init__(self, client_id, account, transport, protocol):
        username, password = account
        self.messages, self.subscribed, self.connected = queue.Queue(), queue.Queue(), queue.Queue()
        self.mqtt = mqtt.Client(V2, client_id, transport=transport, protocol=protocol)
        self.mqtt.username_pw_set(username, password)
        self.mqtt.on_connect = lambda c, u, flags, reason, props: self.connected.put(reason)
        self.mqtt.on_subscribe = lambda c, u, mid, reasons, props: self.subscribed.put(reasons)
        self.mqtt.on_message = lambda c, u, message: self.messages.put((message.topic, message.payload.decode()))
        port = os.environ["TCP_PORT" if transport == "tcp" else "WS_PORT"]
        self.mqtt.connect(HOST, int(port))
        self.mqtt.loop_start()
        self.reason = self.connected.get(timeout=WAIT)

    def subscribe(self, topic):
        self.mqtt.subscribe(topic, qos=1)
        return self.subscribed.get(timeout=WAIT)[0]

    def publish(self, topic, payload):
        self.mqtt.publish(topic, payload, qos=1).wait_for_publish(WAIT)

    def expect(self, topic, payload):
        got = self.messages.get(timeout=WAIT)
        assert got == (topic, payload), got

    def close(self):
        self.mqtt.disconnect()
        self.mqtt.loop_stop()


def main_job(transport, protocol):
    backend = Client("srv", (os.environ["BACKEND"], os.environ["BACKEND_PASSWORD"]), transport, protocol)
    user = (os.environ["USERNAME"], os.environ["PASSWORD"])
    devices = [Client(f"device{n}", user, transport, protocol) for n in range(2)]
    assert not backend.subscribe("chatsync").is_failure
    for device in devices:
        assert not device.reason.is_failure, device.reason
        assert not device.subscribe(f"chat/{USERID}/m/all").is_failure
        assert device.subscribe("chat/somebody-else/m/all").is_failure
    backend.publish("chat/somebody-else/m/all", "not for you")
    backend.publish(f"chat/{USERID}/m/all", "hello")
    for device in devices:
        device.expect(f"chat/{USERID}/m/all", "hello")
    devices[0].publish("chatsync", "back")
    backend.expect("chatsync", "back")
    for client in [backend, *devices]:
        client.close()
    stranger = Client("stranger", (user[0], "guess"), transport, protocol)
    assert stranger.reason.is_failure, stranger.reason
    stranger.close()


for transport in ["tcp", "websockets"]:
    for protocol in [mqtt.MQTTv311, mqtt.MQTTv5]:
        main_job(transport, protocol)
print("done")


"use strict";
// Text from the server only ever becomes text nodes, so nothing in it can become markup.
let token = "";
let doc = null;

function make(tag, props, ...children) {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...children);
  return node;
}

function resolve(schema) {
  while (schema && schema.$ref) {
    schema = schema.$ref.split("/").slice(1).reduce((at, key) => at && at[key], doc);
  }
  return schema || {};
}

// A body to start from: required fields, with values of the right type.
function example(schema) {
  schema = resolve(schema);
  const variants = schema.oneOf || schema.anyOf || schema.allOf;
  if (variants) return example(variants.find((v) => v.type !== "null") || variants[0]);
  if (schema.enum) return schema.enum[0];
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === "object") {
    const body = {};
    const required = schema.required && schema.required.length ? schema.required : Object.keys(schema.properties || {});
    for (const name of required) body[name] = example(schema.properties[name]);
    return body;
  }
  if (type === "array") return [example(schema.items)];
  if (type === "boolean") return false;
  if (type === "integer" || type === "number") return 0;
  return "";
}

async function call(method, path, body) {
  const headers = { Authorization: "Bearer " + token };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return fetch(path, { method, headers, body, credentials: "omit", cache: "no-store" });
}

function operation(path, method, described) {
  const inputs = (described.parameters || []).map((parameter) => {
    const input = make("input", { required: parameter.in === "path" });
    const label = make("label", {}, `${parameter.name} (${parameter.in}) `, input,
      make("span", { className: "hint" }, " " + (parameter.description || "")));
    return { parameter, input, label };
  });
  const content = described.requestBody && described.requestBody.content["application/json"];
  const body = content && make("textarea", { value: JSON.stringify(example(content.schema), null, 2), spellcheck: false });
  const answer = make("pre", { hidden: true });
  const form = make("form", {}, ...inputs.map((i) => i.label), ...(body ? [body] : []), make("button", {}, "Send"), answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let target = path;
    const query = new URLSearchParams();
    for (const { parameter, input } of inputs) {
      if (parameter.in === "path") {
        target = target.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      } else if (input.value !== "") {
        query.set(parameter.name, input.value);
      }
    }
    if (query.size) target += "?" + query;
    answer.hidden = false;
    answer.textContent = "...";
    try {
      const response = await call(method.toUpperCase(), target, body ? body.value : undefined);
      const text = await response.text();
      let shown = text;
      try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: shown as it came */ }
      answer.textContent = `${response.status} ${response.statusText}\n\n${shown}`;
    } catch (error) {
      answer.textContent = String(error);
    }
  });
  return make("details", {},
    make("summary", {}, make("span", { className: "method" }, method.toUpperCase()), make("code", {}, path), " ",
      described.summary || ""),
    make("p", {}, described.description || ""), form);
}

function show() {
  const groups = new Map();
  for (const [path, item] of Object.entries(doc.paths)) {
    for (const [method, described] of Object.entries(item)) {
      if (!described.responses) continue;
      const tag = (described.tags || ["other"])[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(path, method, described));
    }
  }
  const main = document.getElementById("operations");
  main.replaceChildren();
  for (const [tag, operations] of groups) main.append(make("h2", {}, tag), ...operations);
}

document.getElementById("open").addEventListener("submit", async (event) => {
  event.preventDefault();
  const state = document.getElementById("state");
  token = document.getElementById("token").value.trim();
  state.textContent = "...";
  try {
    const response = await call("GET", "/api/v1/openapi.json");
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    doc = answer;
    state.textContent = "version " + doc.info.version;
    show();
  } catch (error) {
    state.textContent = String(error.message || error);
  }
});

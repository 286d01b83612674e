// The main job with MQTT.js over WebSocket: 3.1.1 and 5. Addresses and accounts come from the environment.
'use strict'

const mqtt = require('mqtt')

const { WS_PORT, BACKEND, BACKEND_PASSWORD, USERNAME, PASSWORD, USERID } = process.env
const WAIT = 15000

const within = (promise, what) =>
  Promise.race([promise, new Promise((_, reject) => setTimeout(() => reject(new Error(`no ${what}`)), WAIT).unref())])

const connect = async (clientId, username, password, protocolVersion) => {
  const client = mqtt.connect(`ws://127.0.0.1:${WS_PORT}/mqtt`, {
    clientId, username, password, protocolVersion, reconnectPeriod: 0
  })
  client.queue = []
  client.waiting = []
  client.on('message', (topic, payload) => {
    const text = `${topic} ${payload}`
    const waiter = client.waiting.shift()
    if (waiter) waiter(text)
    else client.queue.push(text)
  })
  await within(new Promise((resolve, reject) => client.once('connect', resolve).once('error', reject)), 'CONNACK')
  return client
}

const message = (client) => within(new Promise((resolve) => {
  if (client.queue.length) resolve(client.queue.shift())
  else client.waiting.push(resolve)
}), 'message')

const expect = async (client, wanted) => {
  const got = await message(client)
  if (got !== wanted) throw new Error(`"${got}" in place of "${wanted}"`)
}

const refused = async (promise, what) => {
  let answer
  try {
    answer = await promise
  } catch {
    return
  }
  if (Array.isArray(answer) && answer.every((grant) => grant.qos >= 0x80)) return
  throw new Error(`${what} was not refused`)
}

const mainJob = async (version) => {
  const backend = await connect('srv', BACKEND, BACKEND_PASSWORD, version)
  const device = await connect('browser', USERNAME, PASSWORD, version)
  await backend.subscribeAsync('chatsync', { qos: 1 })
  await device.subscribeAsync(`chat/${USERID}/m/all`, { qos: 1 })
  await refused(device.subscribeAsync('chat/somebody-else/m/all', { qos: 1 }), 'a foreign filter')
  await backend.publishAsync('chat/somebody-else/m/all', 'not for you', { qos: 1 })
  await backend.publishAsync(`chat/${USERID}/m/all`, 'hello', { qos: 1 })
  await expect(device, `chat/${USERID}/m/all hello`)
  await device.publishAsync('chatsync', 'back', { qos: 1 })
  await expect(backend, 'chatsync back')
  await Promise.all([backend.endAsync(), device.endAsync()])
  await refused(connect('stranger', USERNAME, 'guess', version), 'a wrong password')
}

const main = async () => {
  for (const version of [4, 5]) await mainJob(version)
  console.log('done')
  process.exit(0)
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})

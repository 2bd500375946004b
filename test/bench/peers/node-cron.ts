/**
 * node-cron 4.6, `distributed: true` with a coordinator on Redis. It runs by clocks of its own and takes no deliveries, so
 * what is measured is what it does at each fire: it asks the coordinator with the key `<name>:<slot>` and a lease of 30 s
 * (its `distributedLease`), works, and tells it of the end. Its documentation leaves the coordinator on Redis to a client of
 * one's own: `SET key NX PX lease` here, and the key stays for its lease, as several instances' clocks are not one.
 */
import { Redis } from 'ioredis';
import type { RunCoordinator } from 'node-cron';
import type { Peer } from './peer.ts';

/** Its default. */
const leaseMs = 30_000;

function onRedis(client: Redis): RunCoordinator {
  return {
    shouldRun: async (key, ttlMs) => (await client.set(key, String(process.pid), 'PX', ttlMs, 'NX')) === 'OK',
  };
}

export const nodeCron: Peer = {
  name: 'node-cron',
  on: 'Redis',
  resident: true,
  takenOverBy: 'a delivery',
  setUp:
    'what it does at each fire of a task with `distributed: true` and a coordinator on Redis (`SET key NX PX`, its `distributedLease` of 30 s); keeps its connection',
  async start({ redisPort }, _jobs, work) {
    const client = new Redis({ port: redisPort, host: '127.0.0.1', lazyConnect: true });
    client.on('error', () => undefined);
    await client.connect();
    const coordinator = onRedis(client);
    return {
      async deliver(job, slot) {
        const key = `${job}:${slot}`;
        if (!(await coordinator.shouldRun(key, leaseMs))) return false;
        await work(job, slot);
        await coordinator.onComplete?.(key);
        return true;
      },
      async stop() {
        client.disconnect();
      },
    };
  },
};

/**
 * graphile-worker 0.18: a resident runner, woken by LISTEN/NOTIFY. A slot is added under its name as the job key, with the
 * mode that leaves a job of that key alone, whether it waits or works. A job that is done is deleted, and its key with it. A
 * delivery is over with `job:complete`, when that is written.
 */
import { EventEmitter } from 'node:events';
import { Logger, run, type TaskList, type WorkerEvents } from 'graphile-worker';
import { Waiting, type Peer } from './peer.ts';

export const graphileWorker: Peer = {
  name: 'graphile-worker',
  on: 'PostgreSQL',
  resident: true,
  takenOverBy: 'itself',
  setUp:
    '`run()` with `concurrency: 5` as in its quick start, `jobKey` the slot, `jobKeyMode: unsafe_dedupe`; lets go of a dead worker’s jobs after 4 h; keeps its connections',
  async start({ postgres }, jobs, work) {
    const waiting = new Waiting();
    const events: WorkerEvents = new EventEmitter();
    const slotOf = (payload: unknown) => (payload as { readonly slot: string }).slot;
    events.on('job:complete', ({ job }) => waiting.over(job.task_identifier, slotOf(job.payload)));
    const taskList: TaskList = Object.fromEntries(
      jobs.map((job) => [job, async (payload: unknown) => work(job, slotOf(payload))]),
    );
    const runner = await run({
      connectionString: postgres,
      concurrency: 5,
      noHandleSignals: true,
      taskList,
      events,
      logger: new Logger(() => () => undefined),
    });
    return {
      async deliver(job, slot) {
        const over = waiting.until(job, slot);
        const jobKey = `${job} ${slot}`;
        const added = await runner.addJob(job, { slot }, { jobKey, jobKeyMode: 'unsafe_dedupe' });
        if (added.revision > 0) return false;
        await over;
        return true;
      },
      stop: async () => runner.stop(),
    };
  },
};

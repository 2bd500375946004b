/**
 * DBOS Transact 5: a workflow under an id that is the slot's, as its own scheduler names them and its README has it for
 * events ("use the event ID as an idempotency key to start the workflow exactly-once"). It lives in a process that has been
 * launched; what a dead one had begun is taken up when an executor of the same id is launched again, or by its paid Conductor.
 */
import { DBOS, Error as DBOSErrors } from '@dbos-inc/dbos-sdk';
import type { Peer } from './peer.ts';

const silent = {
  info: () => undefined,
  debug: () => undefined,
  warn: () => undefined,
  error: () => undefined,
};

export const dbos: Peer = {
  name: 'DBOS',
  on: 'PostgreSQL',
  resident: true,
  takenOverBy: 'its restart',
  setUp:
    '`startWorkflow` with `workflowID: sched-<job>-<slot>`, and `workflowIDReusePolicy: reject`, which tells a duplicate; a restart of the same executor puts what it had begun back into a queue; keeps its connections',
  async start({ postgres }, jobs, work) {
    DBOS.setConfig({
      name: 'bench',
      systemDatabaseUrl: postgres,
      executorID: jobs.join('-'),
      logger: silent,
    });
    const workflow = DBOS.registerWorkflow(
      async (job: string, slot: string) => DBOS.runStep(async () => work(job, slot), { name: 'work' }),
      { name: 'scheduled' },
    );
    await DBOS.launch();
    return {
      async deliver(job, slot) {
        const ours = { workflowID: `sched-${job}-${slot}`, workflowIDReusePolicy: 'reject' } as const;
        try {
          const handle = await DBOS.startWorkflow(workflow, ours)(job, slot);
          await handle.getResult();
          return true;
        } catch (error) {
          if (DBOSErrors.isWorkflowIDInUseError(error)) return false;
          throw error;
        }
      },
      stop: async () => DBOS.shutdown({ deregister: true }),
    };
  },
};

/** What Cronce offers to a program that uses it: declaring jobs, and taking deliveries to their outcome. */
export {
  defineJob,
  defineJobs,
  JobError,
  jobOptions,
  scheduleOptions,
  type Job,
  type JobOptions,
  type Registry,
  type ScheduleOptions,
  type Transaction,
  type WorkContext,
} from './job.ts';
export { ParamsError, type ParamsIssue, type ParamsSchema } from './params.ts';
export { coordinate, type Coordinator } from './coordinate.ts';
export { cancelRun, type CancelOptions } from './path/cancel.ts';
export { sweepJob, type Swept, type SweepOptions } from './sweep/sweep.ts';
export { eventBridgeSink } from './sinks/eventbridge.ts';
export { deliveryOf, TriggerError, type Delivery, type RunRequest } from './path/trigger.ts';
export { Stop } from './path/ending.ts';
export { ForbiddenStatement } from './path/statement.ts';
export { TransactionLeftOpen, WorkIsOver } from './path/transaction.ts';
export { OutcomeUnknown } from './path/outcome.ts';
export { lockKey, LockNameError } from './lock-name.ts';
export type { Observer } from './observe/observer.ts';
export type { Sink } from './sinks/sink.ts';
export { readSettings, SettingsError, type Settings } from './settings.ts';
export * from './run.ts';

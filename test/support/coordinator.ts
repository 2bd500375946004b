import type { Coordinator } from '../../src/coordinate.ts';
import type { Job } from '../../src/job.ts';
import type { DriverName, Target } from '../../src/postgres/driver.ts';
import type { Logger } from '../../src/run.ts';
import { slotName, type Delivery } from '../../src/path/trigger.ts';

export interface LogLine {
  readonly level: keyof Logger;
  readonly message: string;
  readonly fields: Record<string, unknown>;
}

/** A logger that keeps what it is told. */
export function keepingLogger(): Logger & { readonly lines: LogLine[] } {
  const lines: LogLine[] = [];
  const at =
    (level: keyof Logger) =>
    (message: string, fields: Record<string, unknown> = {}) =>
      void lines.push({ level, message, fields });
  return { lines, debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
}

export function targetOf(url: string, driver: DriverName = 'pg', relay?: string): Target {
  return { url, driver, connectTimeoutMs: 5_000, ...(relay === undefined ? {} : { relay }) };
}

export function coordinatorOn(url: string, overrides: Partial<Coordinator> = {}): Coordinator {
  return {
    target: targetOf(url),
    leaseMs: 15_000,
    sinks: [],
    publishTimeoutMs: 2_000,
    logger: keepingLogger(),
    ...overrides,
  };
}

/** A rule's delivery of a slot, or any other kind by `overrides`. */
export function deliveryFor(job: Job, slot: string | Date, overrides: Partial<Delivery> = {}): Delivery {
  const scheduledFor = new Date(slot);
  return {
    job,
    slot: slotName(scheduledFor),
    scheduledFor,
    slotGuessed: false,
    scheduledForGuessed: false,
    offSchedule: false,
    trigger: 'rule',
    byHand: false,
    deliveryId: null,
    requestedBy: null,
    params: null,
    ...overrides,
  };
}

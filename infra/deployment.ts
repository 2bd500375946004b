import { isDueAfter, isTooShort, type Job, type JobSchedule } from '../src/job.ts';
import { aroundTheRunMs } from '../src/path/limits.ts';
import { readSettings } from '../src/settings.ts';
import { sweepName } from '../src/sweep/sweep.ts';

/**
 * What is deployed, derived from the registry of jobs, so that code and deployment can't disagree: one Lambda
 * function a job, all of the same bundle, its schedules, and what these may do.
 *
 * Schedules are written as resources and not as the framework's `schedule` events. Those know no dead letter queue
 * and no retry policy for a target; and serverless-offline would fire them, at wrong times (it reads weekdays by
 * Unix numbers, runs rate(90 minutes) hourly and knows neither zones nor transformers).
 */

export interface DeploymentOptions {
  readonly service: string;
  readonly stage: string;
  /** DATABASE_URL and CRONCE_* of it are passed on to the functions. */
  readonly environment: NodeJS.ProcessEnv;
  /** The sweep among them. */
  readonly jobs: readonly Job[];
  /** When it is packaged; default: now. */
  readonly now?: Date;
}

export interface Deployment {
  readonly functions: Readonly<Record<string, LambdaFunction>>;
  readonly resources: { readonly Resources: Readonly<Record<string, Resource>> };
}

export interface LambdaFunction {
  readonly name: string;
  readonly description: string;
  readonly handler: string;
  /** Logical id of a role of ours. */
  readonly role: string;
  readonly timeout: number;
  readonly environment: Readonly<Record<string, string>>;
  readonly maximumRetryAttempts?: number;
  readonly maximumEventAge?: number;
  readonly destinations?: { readonly onFailure: { readonly type: 'sqs'; readonly arn: unknown } };
  readonly events?: readonly { readonly httpApi: '*' }[];
}

export interface Resource {
  readonly Type: string;
  readonly Properties: Readonly<Record<string, unknown>>;
}

export class DeploymentError extends Error {
  override readonly name = 'DeploymentError';
}

/** Lambda's limit. */
const longestTimeoutS = 900;
/** Lambda keeps what it can't run at once for up to six hours; the coordinator then says `too_late`, where that is. */
const longestEventAgeS = 21_600;
/** API Gateway gives up after 30 s. */
const httpTimeoutS = 29;

const deadLetters = arnOf('DeadLetters');

/**
 * @throws {DeploymentError} for a job whose name is taken, whose schedule is over, or whose lock delay is too short; and
 *   for a name that AWS would refuse
 * @throws {SettingsError} for a CRONCE_ variable that is none, or can't be
 */
export function deploymentOf({
  service,
  stage,
  environment,
  jobs: declared,
  now = new Date(),
}: DeploymentOptions): Deployment {
  const jobs = withoutThose(environment['CRONCE_WITHOUT_JOBS'] ?? '', declared);
  demandOwnNames(jobs);
  demandNamesForAws(service, stage, jobs);
  const prefix = `${service}-${stage}-`;
  const { settings, leaseMs } = passedOn({
    ...environment,
    CRONCE_DEPLOYMENT: environment['CRONCE_DEPLOYMENT'] || `${service}-${stage}`,
  });
  for (const job of jobs) demandSense(job, leaseMs, now);
  return {
    functions: {
      http: httpFunction(prefix, settings),
      ...Object.fromEntries(
        jobs.map((job) => [job.name, jobFunction(job, prefix, settings, timeoutOf(job, jobs, leaseMs))]),
      ),
    },
    resources: {
      Resources: {
        ...Object.fromEntries(jobs.flatMap(schedulesOf)),
        ...roles(prefix, jobs, settings['CRONCE_EVENT_BUS']),
        ...deadLetterQueue(prefix),
      },
    },
  };
}

/** A name that is none would be found out only when that job runs. */
function withoutThose(given: string, jobs: readonly Job[]): readonly Job[] {
  const names = given.split(',').map((name) => name.trim());
  const known = jobs.filter(({ name }) => name !== sweepName).map(({ name }) => name);
  const stranger = names.find((name) => name !== '' && !known.includes(name));
  if (stranger !== undefined)
    throw new DeploymentError(
      `CRONCE_WITHOUT_JOBS names ${JSON.stringify(stranger)}, which is no job; known: ${known.join(', ')}`,
    );
  return jobs.filter(({ name }) => !names.includes(name));
}

function demandOwnNames(jobs: readonly Job[]): void {
  const names = ['http', ...jobs.map(({ name }) => name)];
  const taken = names.find((name, index) => names.indexOf(name) !== index);
  if (taken !== undefined)
    throw new DeploymentError(`a job is named "${taken}", like a function of Cronce's own; rename the job`);
}

/** What a job could not know when it was declared. */
function demandSense(job: Job, leaseMs: number, now: Date): void {
  if (isTooShort(job.lockDelayMs, job.leaseMs ?? leaseMs))
    throw new DeploymentError(
      `job "${job.name}": lockDelayMs is ${String(job.lockDelayMs)}; allowed: 0, or at least the lease, ` +
        `which is ${job.leaseMs ?? leaseMs} in this deployment`,
    );
  const over = job.schedules.find((schedule) => schedule.enabled && !isDueAfter(schedule, now));
  if (job.enabled && over)
    throw new DeploymentError(
      `job "${job.name}": its schedule ${over.schedule.expression} is over, and will never fall due again; remove it`,
    );
}

// --- names that AWS takes -----------------------------------------------------------------------

interface NameRule {
  readonly kind: string;
  readonly longest: number;
  readonly shape: RegExp;
  readonly allowed: string;
}

/** Sources: the references of AWS::Lambda::Function, AWS::SQS::Queue and of CloudFormation's stacks. */
const functionNames: NameRule = {
  kind: 'Lambda function',
  longest: 64,
  shape: /^[a-zA-Z0-9_-]+$/,
  allowed: 'letters, digits, hyphens and underscores',
};
const queueNames: NameRule = { ...functionNames, kind: 'SQS queue', longest: 80 };
const stackNames: NameRule = {
  kind: 'CloudFormation stack',
  longest: 128,
  shape: /^[a-zA-Z][a-zA-Z0-9-]*$/,
  allowed: 'letters, digits and hyphens, a letter first',
};

/** All that is wrong at once: another name is chosen once. Rules, schedules and roles get theirs of CloudFormation. */
function demandNamesForAws(service: string, stage: string, jobs: readonly Job[]): void {
  const head = `${service}-${stage}`;
  const faults = [
    faultOf(head, stackNames),
    ...['http', ...jobs.map(({ name }) => name)].map((name) => faultOf(`${head}-${name}`, functionNames)),
    faultOf(`${head}-dead-letters`, queueNames),
  ].filter((fault) => fault !== undefined);
  if (faults.length === 0) return;
  const parts = `service ${JSON.stringify(service)} (${service.length}) and stage ${JSON.stringify(stage)} (${stage.length})`;
  throw new DeploymentError(
    `AWS would refuse ${faults.join('; ')}. Names are made of ${parts} and the job’s; choose others`,
  );
}

function faultOf(name: string, { kind, longest, shape, allowed }: NameRule): string | undefined {
  const { length } = name;
  if (length > longest)
    return `the name of the ${kind} ${JSON.stringify(name)}: it has ${length} characters, ${length - longest} more than ${longest}`;
  return shape.test(name)
    ? undefined
    : `the name of the ${kind} ${JSON.stringify(name)}: allowed are ${allowed}`;
}

// --- functions ----------------------------------------------------------------------------------

/** What only some functions need, only these have. */
const ofHttpAlone = ['CRONCE_READ_TOKENS', 'CRONCE_RUN_TOKENS'];

/** Checked here already: a misspelt setting should fail the deployment and not the first run. */
function passedOn(environment: NodeJS.ProcessEnv): { settings: Record<string, string>; leaseMs: number } {
  const given = Object.entries(environment).filter(
    (entry): entry is [string, string] =>
      entry[0].startsWith('CRONCE_') && entry[0] !== 'CRONCE_JOB' && !!entry[1],
  );
  const settings = Object.fromEntries(given);
  // The real URL may be one that CloudFormation puts in: {{resolve:secretsmanager:…}}.
  const { leaseMs } = readSettings({ ...settings, DATABASE_URL: 'postgres://checked-by-the-function' });
  const url = environment['DATABASE_URL'] ?? '';
  return { settings: { ...settings, DATABASE_URL: url, NODE_OPTIONS: '--enable-source-maps' }, leaseMs };
}

function httpFunction(prefix: string, environment: Record<string, string>): LambdaFunction {
  return {
    name: `${prefix}http`,
    description: 'Cronce: the HTTP API and its page',
    handler: '.build/http.handler',
    role: 'HttpRole',
    timeout: httpTimeoutS,
    environment: { ...environment, CRONCE_FUNCTION_PREFIX: prefix },
    events: [{ httpApi: '*' }],
  };
}

function jobFunction(
  job: Job,
  prefix: string,
  environment: Record<string, string>,
  timeoutS: number,
): LambdaFunction {
  const isSweep = job.name === sweepName;
  const plain = without(environment, ofHttpAlone);
  return {
    name: prefix + job.name,
    description: job.description.slice(0, 256),
    handler: isSweep ? '.build/sweep.handler' : '.build/scheduled.handler',
    role: roleId(job),
    timeout: timeoutS,
    environment: { ...plain, CRONCE_FUNCTION_PREFIX: prefix, CRONCE_JOB: job.name },
    maximumRetryAttempts: job.retries,
    maximumEventAge: longestEventAgeS,
    destinations: { onFailure: { type: 'sqs', arn: deadLetters } },
  };
}

function without(environment: Record<string, string>, keys: readonly string[]): Record<string, string> {
  return Object.fromEntries(Object.entries(environment).filter(([key]) => !keys.includes(key)));
}

/** A run may wait for its lock, and then for the delay that its last holder left with it: one of those that share it. */
function timeoutOf(job: Job, jobs: readonly Job[], leaseMs: number): number {
  const waitMs = job.overlap === 'wait' || job.overlap === 'replace' ? job.waitMs : 0;
  const sharing = [job, ...jobs.filter(({ lock }) => lock === job.lock)];
  const delayMs = Math.max(...sharing.map((one) => one.lockDelayMs ?? one.leaseMs ?? leaseMs));
  return Math.min(longestTimeoutS, Math.ceil((job.timeoutMs + waitMs + delayMs + aroundTheRunMs) / 1_000));
}

// --- schedules ----------------------------------------------------------------------------------

type Named = readonly [logicalId: string, resource: Resource];

function schedulesOf(job: Job): Named[] {
  return job.schedules.flatMap((schedule, index) => {
    const id = `${logicalName(job.name)}Schedule${index}`;
    return schedule.via === 'scheduler'
      ? zonedSchedule(id, job, schedule, index)
      : rule(id, job, schedule, index);
  });
}

/** A static `Input` would take the time out of the event, and with it the slot: hence the transformer. */
function rule(id: string, job: Job, { schedule, enabled }: JobSchedule, index: number): Named[] {
  const target = {
    Id: 'job',
    Arn: arnOf(functionId(job)),
    InputTransformer: {
      InputPathsMap: { time: '$.time', id: '$.id' },
      // Unquoted: EventBridge puts quotes around what it fills in.
      InputTemplate: `{"job":"${job.name}","schedule":${index},"scheduledTime":<time>,"eventId":<id>}`,
    },
    DeadLetterConfig: { Arn: deadLetters },
  };
  const properties = {
    Description: job.description.slice(0, 512),
    ScheduleExpression: schedule.expression,
    State: stateOf(job, enabled),
    Targets: [target],
  };
  const permission = {
    FunctionName: arnOf(functionId(job)),
    Action: 'lambda:InvokeFunction',
    Principal: 'events.amazonaws.com',
    SourceArn: arnOf(id),
  };
  return [
    [id, { Type: 'AWS::Events::Rule', Properties: properties }],
    [`${id}Permission`, { Type: 'AWS::Lambda::Permission', Properties: permission }],
  ];
}

function zonedSchedule(id: string, job: Job, given: JobSchedule, index: number): Named[] {
  const { schedule, timeZone, flexibleMinutes, start, end, enabled } = given;
  const input = { job: job.name, schedule: index, scheduledTime: '<aws.scheduler.scheduled-time>' };
  const target = {
    Arn: arnOf(functionId(job)),
    RoleArn: arnOf('SchedulerRole'),
    Input: JSON.stringify(input),
    DeadLetterConfig: { Arn: deadLetters },
  };
  const properties = {
    Description: job.description.slice(0, 512),
    ScheduleExpression: schedule.expression,
    ScheduleExpressionTimezone: timeZone,
    FlexibleTimeWindow:
      flexibleMinutes === null
        ? { Mode: 'OFF' }
        : { Mode: 'FLEXIBLE', MaximumWindowInMinutes: flexibleMinutes },
    ...(start && { StartDate: start.toISOString() }),
    ...(end && { EndDate: end.toISOString() }),
    State: stateOf(job, enabled),
    Target: target,
  };
  return [[id, { Type: 'AWS::Scheduler::Schedule', Properties: properties }]];
}

function stateOf(job: Job, enabled: boolean): 'ENABLED' | 'DISABLED' {
  return job.enabled && enabled ? 'ENABLED' : 'DISABLED';
}

// --- what they may do ---------------------------------------------------------------------------

function roles(prefix: string, jobs: readonly Job[], eventBus: string | undefined): Record<string, Resource> {
  const started = jobs.filter(({ name }) => name !== sweepName);
  const zoned = jobs.filter(({ schedules }) => schedules.some(({ via }) => via === 'scheduler'));
  const invokeAll = allow('lambda:InvokeFunction', arnsOf(prefix, started));
  const toDeadLetters = allow('sqs:SendMessage', [deadLetters]);
  const run = [
    writeLogs(prefix),
    toDeadLetters,
    ...(eventBus ? [allow('events:PutEvents', [busArn(eventBus)])] : []),
  ];
  // Owed slots follow each other: each run asks its own function for the next. No job may start another.
  const ofJobs = started.map((job) => {
    const invokeItself = allow('lambda:InvokeFunction', arnsOf(prefix, [job]));
    return [roleId(job), role('lambda.amazonaws.com', [...run, invokeItself])] as const;
  });
  const invokeZoned = allow('lambda:InvokeFunction', arnsOf(prefix, zoned));
  return {
    ...Object.fromEntries(ofJobs),
    SweepRole: role('lambda.amazonaws.com', [...run, invokeAll]),
    HttpRole: role('lambda.amazonaws.com', [writeLogs(prefix), invokeAll]),
    ...(zoned.length > 0 && { SchedulerRole: role('scheduler.amazonaws.com', [invokeZoned, toDeadLetters]) }),
  };
}

function arnsOf(prefix: string, jobs: readonly Job[]): unknown[] {
  return jobs.map(({ name }) => ({ 'Fn::Sub': `${arnHead('lambda')}:function:${prefix}${name}` }));
}

function role(service: string, statements: readonly object[]): Resource {
  return {
    Type: 'AWS::IAM::Role',
    Properties: {
      AssumeRolePolicyDocument: policy([
        { Effect: 'Allow', Principal: { Service: service }, Action: 'sts:AssumeRole' },
      ]),
      Policies: [{ PolicyName: 'cronce', PolicyDocument: policy(statements) }],
    },
  };
}

function policy(statements: readonly object[]) {
  return { Version: '2012-10-17', Statement: statements };
}

function allow(action: string | readonly string[], resources: readonly unknown[]) {
  return { Effect: 'Allow', Action: action, Resource: resources };
}

function writeLogs(prefix: string) {
  const groups = { 'Fn::Sub': `${arnHead('logs')}:log-group:/aws/lambda/${prefix}*:*` };
  return allow(['logs:CreateLogStream', 'logs:PutLogEvents'], [groups]);
}

/** Where events end that could not be delivered, or whose every attempt failed before a record could be made. */
function deadLetterQueue(prefix: string): Record<string, Resource> {
  return {
    DeadLetters: {
      Type: 'AWS::SQS::Queue',
      Properties: {
        QueueName: `${prefix}dead-letters`,
        MessageRetentionPeriod: 14 * 86_400,
        SqsManagedSseEnabled: true,
      },
    },
    DeadLettersPolicy: {
      Type: 'AWS::SQS::QueuePolicy',
      Properties: {
        Queues: [{ Ref: 'DeadLetters' }],
        PolicyDocument: policy([
          {
            ...allow('sqs:SendMessage', [deadLetters]),
            Principal: { Service: 'events.amazonaws.com' },
            Condition: { ArnLike: { 'aws:SourceArn': { 'Fn::Sub': `${arnHead('events')}:rule/*` } } },
          },
        ]),
      },
    },
  };
}

// --- names --------------------------------------------------------------------------------------

/** As osls forms logical ids: `expire-sessions` is ExpireDashsessions. */
function logicalName(name: string): string {
  const plain = name.replaceAll('-', 'Dash');
  return plain.charAt(0).toUpperCase() + plain.slice(1);
}

/** The sweep may start every job, and a job itself: so each has a role of its own. */
function roleId({ name }: Job): string {
  return name === sweepName ? 'SweepRole' : `JobRole${logicalName(name)}`;
}

function functionId({ name }: Job): string {
  return `${logicalName(name)}LambdaFunction`;
}

function arnOf(logicalId: string) {
  return { 'Fn::GetAtt': [logicalId, 'Arn'] };
}

function arnHead(service: string): string {
  return `arn:\${AWS::Partition}:${service}:\${AWS::Region}:\${AWS::AccountId}`;
}

function busArn(bus: string): unknown {
  return bus.startsWith('arn:') ? bus : { 'Fn::Sub': `${arnHead('events')}:event-bus/${bus}` };
}

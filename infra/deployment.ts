import type { Job, JobSchedule, Registry } from '../src/job.ts';
import { registry } from '../src/jobs/index.ts';
import { readSettings } from '../src/settings.ts';

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
  readonly jobs?: Registry;
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
/** Beside a run's own time: connecting, claiming, recording, publishing. */
const aroundTheRunS = 10;
/** Lambda keeps what it can't run at once for up to six hours; the coordinator then says `too_late`, where that is. */
const longestEventAgeS = 21_600;
/** API Gateway gives up after 30 s. */
const httpTimeoutS = 29;

const deadLetters = arnOf('DeadLetters');

/**
 * @throws {DeploymentError} for a job whose name is taken
 * @throws {SettingsError} for a CRONCE_ variable that is none, or can't be
 */
export function deploymentOf(options: DeploymentOptions): Deployment {
  const jobs = [...(options.jobs ?? registry).values()];
  const taken = jobs.find(({ name }) => name === 'http');
  if (taken) throw new DeploymentError('a job is named "http", like the function of the HTTP API; rename the job');
  const prefix = `${options.service}-${options.stage}-`;
  const environment = passedOn(options.environment);
  return {
    functions: {
      http: httpFunction(prefix, environment),
      ...Object.fromEntries(jobs.map((job) => [job.name, jobFunction(job, prefix, environment)])),
    },
    resources: {
      Resources: {
        ...Object.fromEntries(jobs.flatMap(schedulesOf)),
        ...roles(prefix, jobs, environment['CRONCE_EVENT_BUS']),
        ...deadLetterQueue(prefix),
      },
    },
  };
}

// --- functions ----------------------------------------------------------------------------------

/** Only the HTTP entry needs them, so only it has them. */
const ofHttpAlone = ['CRONCE_READ_TOKENS', 'CRONCE_RUN_TOKENS', 'CRONCE_LAMBDA_ENDPOINT'];

/** Checked here already: a misspelt setting should fail the deployment and not the first run. */
function passedOn(environment: NodeJS.ProcessEnv): Record<string, string> {
  const given = Object.entries(environment).filter(
    (entry): entry is [string, string] => entry[0].startsWith('CRONCE_') && entry[0] !== 'CRONCE_JOB' && !!entry[1],
  );
  const settings = Object.fromEntries(given);
  // The real URL may be one that CloudFormation puts in: {{resolve:secretsmanager:…}}.
  readSettings({ ...settings, DATABASE_URL: 'postgres://checked-by-the-function' });
  return { ...settings, DATABASE_URL: environment['DATABASE_URL'] ?? '', NODE_OPTIONS: '--enable-source-maps' };
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

function jobFunction(job: Job, prefix: string, environment: Record<string, string>): LambdaFunction {
  const own = Object.fromEntries(Object.entries(environment).filter(([key]) => !ofHttpAlone.includes(key)));
  return {
    name: prefix + job.name,
    description: job.description.slice(0, 256),
    handler: '.build/scheduled.handler',
    role: 'JobRole',
    timeout: timeoutOf(job),
    environment: { ...own, CRONCE_JOB: job.name },
    maximumRetryAttempts: job.retries,
    maximumEventAge: longestEventAgeS,
    destinations: { onFailure: { type: 'sqs', arn: deadLetters } },
  };
}

function timeoutOf(job: Job): number {
  const waitMs = job.overlap === 'wait' || job.overlap === 'replace' ? job.waitMs : 0;
  return Math.min(longestTimeoutS, Math.ceil((job.timeoutMs + waitMs) / 1_000) + aroundTheRunS);
}

// --- schedules ----------------------------------------------------------------------------------

type Named = readonly [logicalId: string, resource: Resource];

function schedulesOf(job: Job): Named[] {
  return job.schedules.flatMap((schedule, index) => {
    const id = `${logicalName(job.name)}Schedule${index}`;
    return schedule.via === 'scheduler' ? zonedSchedule(id, job, schedule, index) : rule(id, job, schedule, index);
  });
}

/** A static `Input` would take the time out of the event, and with it the slot: hence the transformer. */
function rule(id: string, job: Job, { schedule }: JobSchedule, index: number): Named[] {
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
    State: 'ENABLED',
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

function zonedSchedule(id: string, job: Job, { schedule, timeZone }: JobSchedule, index: number): Named[] {
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
    FlexibleTimeWindow: { Mode: 'OFF' },
    State: 'ENABLED',
    Target: target,
  };
  return [[id, { Type: 'AWS::Scheduler::Schedule', Properties: properties }]];
}

// --- what they may do ---------------------------------------------------------------------------

function roles(prefix: string, jobs: readonly Job[], eventBus: string | undefined): Record<string, Resource> {
  const jobArns = jobs.map(({ name }) => functionArn(prefix + name));
  const zoned = jobs.filter(({ schedules }) => schedules.some(({ via }) => via === 'scheduler'));
  const toDeadLetters = allow('sqs:SendMessage', [deadLetters]);
  return {
    JobRole: role('lambda.amazonaws.com', [
      writeLogs(prefix),
      toDeadLetters,
      ...(eventBus === undefined ? [] : [allow('events:PutEvents', [busArn(eventBus)])]),
    ]),
    HttpRole: role('lambda.amazonaws.com', [writeLogs(prefix), allow('lambda:InvokeFunction', jobArns)]),
    ...(zoned.length > 0 && {
      SchedulerRole: role('scheduler.amazonaws.com', [
        allow(
          'lambda:InvokeFunction',
          zoned.map(({ name }) => functionArn(prefix + name)),
        ),
        toDeadLetters,
      ]),
    }),
  };
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
  const groups = `arn:\${AWS::Partition}:logs:\${AWS::Region}:\${AWS::AccountId}:log-group:/aws/lambda/${prefix}*:*`;
  return allow(['logs:CreateLogStream', 'logs:PutLogEvents'], [{ 'Fn::Sub': groups }]);
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

function functionId({ name }: Job): string {
  return `${logicalName(name)}LambdaFunction`;
}

function arnOf(logicalId: string) {
  return { 'Fn::GetAtt': [logicalId, 'Arn'] };
}

function arnHead(service: string): string {
  return `arn:\${AWS::Partition}:${service}:\${AWS::Region}:\${AWS::AccountId}`;
}

function functionArn(name: string) {
  return { 'Fn::Sub': `${arnHead('lambda')}:function:${name}` };
}

function busArn(bus: string): unknown {
  return bus.startsWith('arn:') ? bus : { 'Fn::Sub': `${arnHead('events')}:event-bus/${bus}` };
}

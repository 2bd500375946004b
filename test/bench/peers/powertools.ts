/**
 * Powertools for AWS Lambda, idempotency 2.35 on DynamoDB (dynalite here, in memory): the slot is the key, the context of the
 * invocation is registered as its documentation asks for, so that work in progress expires with the invocation's own time
 * limit. A delivery that meets work in progress is thrown `IdempotencyAlreadyInProgressError`, which Lambda would retry.
 */
import {
  IdempotencyAlreadyInProgressError,
  IdempotencyConfig,
  makeIdempotent,
} from '@aws-lambda-powertools/idempotency';
import { DynamoDBPersistenceLayer } from '@aws-lambda-powertools/idempotency/dynamodb';
import {
  CreateTableCommand,
  DynamoDBClient,
  ResourceInUseException,
  waitUntilTableExists,
} from '@aws-sdk/client-dynamodb';
import type { Peer } from './peer.ts';

const tableName = 'idempotency';
/** Of the function; work in progress is taken for dead when it is over. */
export const timeLimitMs = 30_000;

type Context = Parameters<IdempotencyConfig['registerLambdaContext']>[0];

/** The whole of it is the key. */
interface Delivery extends Record<string, unknown> {
  readonly job: string;
  readonly slot: string;
}

function contextOfNow(): Context {
  const end = Date.now() + timeLimitMs;
  const context: Pick<Context, 'getRemainingTimeInMillis' | 'functionName'> = {
    functionName: 'bench',
    getRemainingTimeInMillis: () => end - Date.now(),
  };
  return context as Context; // all that it reads
}

async function tableIn(client: DynamoDBClient): Promise<void> {
  const create = new CreateTableCommand({
    TableName: tableName,
    AttributeDefinitions: [{ AttributeName: 'id', AttributeType: 'S' }],
    KeySchema: [{ AttributeName: 'id', KeyType: 'HASH' }],
    BillingMode: 'PAY_PER_REQUEST',
  });
  await client.send(create).catch((error: unknown) => {
    if (!(error instanceof ResourceInUseException)) throw error;
  });
  await waitUntilTableExists({ client, maxWaitTime: 10, minDelay: 1 }, { TableName: tableName });
}

export const powertools: Peer = {
  name: 'Powertools idempotency',
  on: 'DynamoDB',
  resident: false,
  takenOverBy: 'a delivery',
  setUp: `the slot as the key, kept for its default of 1 h; a Lambda time limit of ${timeLimitMs / 1_000} s; turned away by an error while work is in progress; DynamoDB is dynalite, in memory; keeps its connection`,
  async start({ dynamoPort }, _jobs, work) {
    const client = new DynamoDBClient({
      endpoint: `http://127.0.0.1:${dynamoPort}`,
      region: 'us-east-1',
      credentials: { accessKeyId: 'local', secretAccessKey: 'local' },
    });
    await tableIn(client);
    const persistenceStore = new DynamoDBPersistenceLayer({ tableName, awsSdkV3Client: client });
    return {
      async deliver(job, slot) {
        let ran = false;
        const config = new IdempotencyConfig({});
        config.registerLambdaContext(contextOfNow());
        const handler = async (event: Delivery) => {
          ran = true;
          await work(event.job, event.slot);
          return { done: true };
        };
        try {
          await makeIdempotent(handler, { persistenceStore, config })({ job, slot });
          return ran;
        } catch (error) {
          if (error instanceof IdempotencyAlreadyInProgressError) return false;
          throw error;
        }
      },
      async stop() {
        client.destroy();
      },
    };
  },
};

/** Where the rows are played: one server for all, and for each row a database, a way to it and a crew. */
import path from 'node:path';
import type { LocalPostgres } from '../../infra/local/postgres.ts';
import { freshDatabase, LeakError, type TestDatabase } from '../support/database.ts';
import { scratchFolder } from '../support/scratch.ts';
import { startServer } from '../support/server.ts';
import { bundleWorker, Crew } from './crew.ts';
import { Gate } from './gate.ts';
import { directWay, farWay, neonWay, pgbouncerWay, type Way } from './ways.ts';
import { LockWatch } from './watch.ts';

export interface Ground {
  readonly server: LocalPostgres;
  readonly folder: string;
  /** The worker, ready to run. */
  readonly bundle: string;
  /** For trials: each has some three processes. */
  readonly gate: Gate;
  /** In [0, 1), as the seed has it. */
  readonly random: () => number;
  readonly progress: (row: string, done: number, of: number) => void;
  close(): Promise<void>;
}

/** Over all rows. */
const trialsAtOnce = 7;

export async function openGround(
  options: Pick<Ground, 'random'> & Partial<Pick<Ground, 'progress'>>,
  more: Readonly<Record<string, string>> = {},
): Promise<Ground> {
  const folder = await scratchFolder();
  // Commit times decide whether a fenced write came before its run's successor.
  const settings = { max_connections: '400', track_commit_timestamp: 'on', ...more };
  // Each proxy, pooler and crew has a listener for the end of this process.
  process.setMaxListeners(0);
  const server = await startServer({ dataDir: path.join(folder.path, 'server'), settings });
  const close = async () => {
    await server.kill();
    await folder.remove();
  };
  try {
    const bundle = await bundleWorker(folder.path);
    const gate = new Gate(trialsAtOnce);
    return { progress: () => undefined, ...options, gate, server, folder: folder.path, bundle, close };
  } catch (error) {
    await close();
    throw error;
  }
}

export interface Field {
  readonly ground: Ground;
  readonly db: TestDatabase;
  readonly way: Way;
  readonly crew: Crew;
  readonly watch: LockWatch;
  /** Ends all of it; answers what was left behind. */
  close(): Promise<string[]>;
}

export async function openField(ground: Ground, wayName: Way['name'] = 'direct'): Promise<Field> {
  const db = await freshDatabase({ serverUrl: ground.server.url });
  await db.queryAsRole(tables);
  const way = await openWay(ground, db, wayName);
  const crew = new Crew(ground.bundle, db.url);
  const watch = new LockWatch(db.superuserUrl);
  return {
    ...{ ground, db, way, crew, watch },
    async close() {
      await crew.dismiss();
      await way.close();
      await watch.close();
      return drop(db);
    },
  };
}

async function openWay(ground: Ground, db: TestDatabase, name: Way['name']): Promise<Way> {
  switch (name) {
    case 'direct':
      return directWay(db.url);
    case 'pgbouncer':
      return pgbouncerWay(db.url, ground.folder);
    case 'neon':
      return neonWay(db.url);
    case 'far':
      return farWay(db.url);
  }
}

async function drop(db: TestDatabase): Promise<string[]> {
  try {
    await db.drop();
    return [];
  } catch (error) {
    if (error instanceof LeakError) return [...error.leaks];
    throw error;
  }
}

/** What workers write, and a witness of every change of a run's status. */
const tables = `
  CREATE SCHEMA faults;
  CREATE TABLE faults.counter (lock text PRIMARY KEY, n integer NOT NULL);
  CREATE TABLE faults.written (run_id uuid NOT NULL, lock text NOT NULL);
  CREATE TABLE faults.fenced (run_id uuid NOT NULL, lock text NOT NULL, fence bigint NOT NULL);
  CREATE TABLE faults.effect (run_id uuid NOT NULL, lock text NOT NULL, fence bigint NOT NULL,
    vouched_at timestamptz NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
  CREATE TABLE faults.change (run_id uuid NOT NULL, was text NOT NULL, became text NOT NULL);
  CREATE FUNCTION faults.witness() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN
    INSERT INTO faults.change VALUES (old.id, old.status, new.status);
    RETURN NULL;
  END $$;
  CREATE TRIGGER witness AFTER UPDATE ON cronce.run FOR EACH ROW
    WHEN (old.status IS DISTINCT FROM new.status) EXECUTE FUNCTION faults.witness();
`;

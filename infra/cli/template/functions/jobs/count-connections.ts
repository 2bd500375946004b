import { defineJob } from 'cronce';

export const countConnections = defineJob({
  name: 'count-connections',
  description: 'Counts who is connected to the database.',
  schedule: 'rate(1 minute)',
  lockDelayMs: 0, // it writes through tx alone, if at all
  async work({ tx }) {
    const { rows } = await tx.query<{ connections: number }>(
      'SELECT count(*)::integer AS connections FROM pg_stat_activity WHERE datname = current_database()',
    );
    return rows[0];
  },
});

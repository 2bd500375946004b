import { defineJob } from '../../src/index.ts';

export const expireSessions = defineJob({
  name: 'expire-sessions',
  description: 'Deletes sessions that ended before the slot.',
  schedule: 'rate(5 minutes)',
  lockDelayMs: 0, // all it writes goes through tx
  async work({ tx, scheduledFor }) {
    const { rowCount } = await tx.query('DELETE FROM app.session WHERE expires_at < $1', [scheduledFor]);
    return { deleted: rowCount };
  },
});

import { defineJob, type Transaction } from '../../src/index.ts';
import { fileMail, type Mail } from './mail.ts';

interface Pending extends Record<string, unknown> {
  readonly id: string;
  readonly recipient: string;
  readonly body: string;
}

/**
 * An effect outside PostgreSQL can't be rolled back, so each one is dealt with by itself: `check()` right before it,
 * with no `await` in between; a key by which the receiver drops a repetition; and a small fenced commit behind it, so
 * that a later failure of the run sends nothing twice.
 */
export function sendNotificationsBy(mail: Mail) {
  return defineJob({
    name: 'send-notifications',
    description: 'Sends the notifications that are pending, and a summary.',
    schedule: 'rate(1 minute)',
    async work({ tx, check, fenced, idempotencyKey, signal }) {
      const pending = await findPending(tx);
      for (const { id, recipient, body } of pending) {
        check();
        await mail.send({ key: `notification-${id}`, to: recipient, body }, signal);
        await fenced((own) =>
          own.query('UPDATE app.notification SET sent_at = clock_timestamp() WHERE id = $1', [id]),
        );
      }
      if (pending.length > 0) {
        check();
        await mail.send(
          { key: idempotencyKey, to: 'ops@example.com', body: `${pending.length} sent` },
          signal,
        );
      }
      return { sent: pending.length };
    },
  });
}

async function findPending(tx: Transaction): Promise<Pending[]> {
  const { rows } = await tx.query<Pending>(
    'SELECT id, recipient, body FROM app.notification WHERE sent_at IS NULL ORDER BY created_at, id LIMIT 10',
  );
  return rows;
}

export const sendNotifications = sendNotificationsBy(fileMail());

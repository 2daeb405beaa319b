"""Former failures as small scenarios: mended defects, and false alarms of the checks."""

from __future__ import annotations

from tests.verification.simulation.scenario import Scenario, Step

__all__ = ["REGRESSIONS"]

_NOTIFIED = tuple(Step(2.0 + n, "notify", (0, "task0", n)) for n in range(8))

# In the layout that `--shrink` prints.
# fmt: off
REGRESSIONS = {
    # `notify()` reported that nothing was stored, though it was.
    "a commit in which the disk fails": Scenario(
        seed=5, ends=100.0,
        steps=(
            Step(0.5, "subscribe", (0, "task0", "owner0", "hook0", "1.0")),
            Step(1.9, "disk", ("uncertain", 30.0)),
            *_NOTIFIED,
        ),
    ),
    # A resent delivery stayed pending for ever: a subscription that was withdrawn as its task ended
    # could not be resumed.
    "a pause while the last of a task is under way": Scenario(
        seed=268, ends=100.0,
        steps=(
            Step(0.5, "subscribe", (0, "task0", "owner0", "hook0", "1.0")),
            Step(1.0, "behaviour", ("hook0", "sluggish")),
            Step(2.0, "finish", (0, "task0", "completed")),
            Step(3.0, "pause", (0, "task0", "owner0")),
            Step(30.0, "resend", (0,)),
        ),
    ),
    # A worker frozen in its claim sent what it had claimed after the lease was over.
    "a freeze in the middle of a claim": Scenario(
        seed=600, agents=3, webhooks=2, receivers=1, postgres=True, ends=150.0,
        steps=(
            Step(0.2, "subscribe", (0, "task0", "owner0", "hook0", "0.1", "jwt", "states")),
            Step(1.0, "subscribe", (0, "task1", "owner0", "hook1", "0.1", "jwt", "")),
            Step(2.0, "await", ("agent0", 223, 5.0)),
            Step(3.038, "trigger", ("stop", "request", 0, 40.0)),
            Step(3.696, "notify", (1, "task1", 0, "artifact")),
            Step(4.859, "names", ("hook0", "alone")),
            Step(7.266, "notify", (1, "task1", 2, "said")),
            Step(15.969, "names", ("hook0", "back")),
            Step(28.113, "await", ("recv0", 307, 0.1)),
            Step(30.788, "next_answer", ("hook1", "400")),
            Step(31.799, "trigger", ("freeze", "request", 0, 1.0)),
            Step(32.047, "flap", ("agent1", 11, 2)),
            Step(35.452, "disk", ("error", 1.0)),
            Step(35.454, "burst", (2, "task1", 2)),
            Step(35.456, "burst", (0, "task1", 3)),
            Step(35.456, "burst", (1, "task1", 3)),
        ),
    ),
    # The deliveries of a removed subscription kept their slot for 30 s, as if another process held
    # the row.
    "a subscription that is removed while its worker stands still": Scenario(
        seed=5686, agents=3, receivers=2, postgres=True, ends=150.0,
        steps=(
            Step(0.1, "subscribe", (0, "task0", "owner1", "hook0", "0.1", "webhooks", "")),
            Step(0.474, "subscribe", (1, "task3", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.043, "subscribe", (1, "task0", "owner0", "recv0", "0.2", "jwt", "")),
            Step(23.001, "trigger", ("unsubscribe", "request", 3, 40.0)),
            Step(32.106, "notify", (1, "task0", 0, "bare")),
            Step(37.54, "notify", (2, "task0", 2, "task")),
            Step(71.053, "notify", (1, "task0", 3, "chunk")),
            Step(71.476, "trigger", ("freeze", "request", 0, 1.0)),
            Step(71.901, "notify", (2, "task0", 4, "last")),
        ),
    ),
    # Right: a forgery made the receiver fetch keys, so that it may not fetch again for 30 s. Until
    # then, notifications signed with an unannounced key are refused, and retried.
    "a key that is revoked soon after a forgery": Scenario(
        seed=65008, agents=2, mute=1, webhooks=0, receivers=1, postgres=True, ends=75.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "recv0", "1.0", "jwt", "")),
            Step(18.0, "forge", ("recv0", "his key")),
            Step(20.0, "notify", (0, "task0", 0, "task")),
            Step(21.0, "rotate", (0, "revoke")),
            Step(21.5, "notify", (0, "task0", 1, "status")),
            Step(22.0, "reuse", ("recv0", 0)),
            Step(60.0, "reuse", ("recv0", 0)),
        ),
    ),
    # A delivery reached its maximum age before its third refused address: dead of age.
    "an address that is refused when a delivery is old": Scenario(
        seed=115172, postgres=True, slow=True, ends=90000.0,
        steps=(
            Step(603.6, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(3497.4, "behaviour", ("hook0", "504")),
            Step(5492.4, "notify", (0, "task0", 0, "chunk")),
            Step(23428.2, "retry_now", (0,)),
            Step(72646.2, "names", ("hook0", "private")),
        ),
    ),
    # The exception of a cancelled claim was never retrieved.
    "a claim that fails while its receiver stops": Scenario(
        seed=120324, webhooks=0, receivers=2, postgres=True, twins=True, ends=75.0,
        steps=(
            Step(28.0, "notify", (0, "task0", 2, "status")),
            Step(40.0, "partition", ("twin1", 80.0, False)),
            Step(45.0, "upgrade", ("recv1", 25.0, False)),
        ),
    ),
    # A thawed receiver claimed expired notifications anew, and called back what another had called.
    "a receiver that stands still while it stores": Scenario(
        seed=122963, agents=3, receivers=2, postgres=True, twins=True, sealed=True,
        ends=150.0,
        steps=(
            Step(0.5, "subscribe", (0, "task0", "owner1", "recv0", "1.0", "jwt", "")),
            Step(1.0, "subscribe", (0, "task0", "owner1", "recv0", "1.0", "jwt", "end")),
            Step(1.3, "subscribe", (0, "task1", "owner0", "recv0", "0.3", "samples", "states")),
            Step(12.0, "test", (0, "task0", "owner0")),
            Step(12.2, "pause", (0, "task0", "owner0")),
            Step(13.0, "resume", (1, "task0", "owner0")),
            Step(13.47, "notify", (0, "task1", 0, "task")),
            Step(13.7, "notify", (0, "task1", 0, "chunk")),
            Step(16.0, "network", ("recv0", "drip", 0, 1.0)),
            Step(17.647, "notify", (2, "task1", 2, "submitted")),
            Step(17.648, "notify", (0, "task1", 1, "bare")),
            Step(21.0, "next_answer", ("hook0", "babble late")),
            Step(27.18, "notify", (0, "task1", 4, "status")),
            Step(27.187, "notify", (1, "task1", 5, "status")),
            Step(28.187, "finish", (2, "task1", "rejected")),
            Step(36.0, "disk", ("uncertain", 3.0)),
            Step(41.0, "trigger", ("freeze", "intake", 0, 40.0)),
            Step(42.0, "next_answer", ("hook0", "babble")),
            Step(48.0, "next_answer", ("hook0", "leave")),
            Step(61.8, "notify", (2, "task0", 1, "chunk")),
            Step(61.814, "notify", (0, "task0", 0, "artifact")),
            Step(62.828, "finish", (0, "task0", "rejected")),
            Step(77.0, "next_answer", ("hook0", "400")),
            Step(83.4, "next_answer", ("hook0", "410")),
            Step(113.908, "subscribe", (2, "task1", "owner1", "hook0", "1.0", "jwt", "chunks")),
        ),
    ),
    # Claims went from destination to destination: an owner with many delayed all owners behind it.
    "an owner with more destinations than claims look at": Scenario(
        seed=7, agents=2, mute=1, crowded=True, most=120, webhooks=121, ends=30.0,
        steps=(
            *(Step(0.0, "behaviour", (f"hook{n}", "sluggish")) for n in range(1, 121)),
            *(
                Step(
                    0.1, "subscribe", (0, "evil", "mallory0", f"hook{n}", "1.0", "jwt", f"copy{n}")
                )
                for n in range(1, 121)
            ),
            Step(0.9, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(2.0, "burst", (1, "evil", 3)),
            *(Step(5.0 + n, "notify", (1, "task0", n, "status")) for n in range(8)),
        ),
    ),
    # Right: an old program frozen in the middle of a write delays an upgrade, and calls back before
    # it can learn of it.
    "an upgrade that waits for a program that stands still": Scenario(
        seed=1, webhooks=0, receivers=1, twins=True, ends=150.0,
        steps=(
            Step(1.0, "subscribe", (0, "task0", "owner0", "recv0", "1.0", "jwt", "")),
            Step(47.0, "doze", ("recv0", 4, 100.0)),
            Step(47.5, "notify", (0, "task0", 2, "chunk")),
            Step(65.7, "upgrade", ("twin0", 4.0, False)),
        ),
    ),
    # An agent notified its updates only when its server was back, after all other faults had ended.
    "a server that is away beyond the end of all other faults": Scenario(
        seed=1, webhooks=0, receivers=1, postgres=True, ends=75.0,
        steps=(
            Step(0.8, "subscribe", (0, "task0", "owner0", "recv0", "1.0", "jwt", "")),
            Step(30.0, "server", ("agent0", "power", 50.0)),
            Step(45.5, "burst", (0, "task0", 2)),
            Step(53.0, "partition", ("recv0", 80.0, False)),
        ),
    ),
    # On probation a second request went out beside that of a subscription which was removed.
    "a subscription that is removed during the one attempt of a probation": Scenario(
        seed=463, sealed=True, ends=57.0,
        steps=(
            Step(0.4, "subscribe", (0, "outage2", "patient", "hook0", "1.0", "jwt", "")),
            Step(0.6, "subscribe", (0, "outage0", "patient", "hook0", "1.0", "jwt", "")),
            Step(1.0, "subscribe", (0, "outage1", "patient", "hook0", "1.0", "jwt", "")),
            Step(18.0, "behaviour", ("hook0", "tired")),
            *(Step(19.0, "notify", (0, f"outage{task}", 0)) for task in (2, 0, 1)),
            Step(26.0, "trigger", ("unsubscribe", "request", 0, 1.0)),
        ),
    ),
    # Right: a result that is stored again, as its commit may have failed, is logged once.
    "a result whose commit may have failed": Scenario(
        seed=4, ends=60.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.0, "behaviour", ("hook0", "sluggish")),
            Step(2.0, "notify", (0, "task0", 0, "status")),
            Step(9.0, "disk", ("uncertain", 2.0)),
        ),
    ),
    # Right: of two changes of one config at once, the later one moves what is unfinished, too.
    "one config that is changed twice at once": Scenario(
        seed=753753, agents=2, postgres=True, ends=36.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.0, "behaviour", ("hook0", "tired")),
            Step(4.0, "notify", (0, "task0", 0, "status")),
            Step(8.0, "subscribe", (0, "task0", "owner0", "hook1", "1.0", "jwt", "")),
            Step(8.0044, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
        ),
    ),
    # Right: a result that comes after its lease is dropped, and the next worker keeps the queue.
    "a worker that stands still for longer than its lease": Scenario(
        seed=1, agents=2, postgres=True, ends=250.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.0, "behaviour", ("hook0", "tired")),
            Step(2.0, "notify", (0, "task0", 0, "status")),
            Step(2.1, "notify", (0, "task0", 1, "status")),
            Step(3.0, "freeze", ("agent0", 121.0)),  # until the next worker, which looks after 120
            Step(4.0, "behaviour", ("hook0", "sluggish")),
        ),
    ),
    # Right: a result that is stored again does not count for the delivery that was resent since.
    "a delivery that is resent while its result is stored again": Scenario(
        seed=2, ends=50.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.0, "behaviour", ("hook0", "slow")),
            Step(2.0, "notify", (0, "task0", 0, "status")),
            Step(2.01, "notify", (0, "task0", 1, "status")),
            Step(5.0, "disk", ("uncertain", 1.0)),
            *(Step(5.062 + n / 100, "resend", (0,)) for n in range(4)),
        ),
    ),
    # Right: a worker looks at a queue again before it sends what it took over a while ago.
    "a pause by another process during an attempt": Scenario(
        seed=1, agents=2, mute=1, ends=50.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.0, "behaviour", ("hook0", "slow")),
            Step(2.0, "notify", (0, "task0", 0, "status")),
            Step(2.1, "notify", (0, "task0", 1, "status")),
            Step(3.0, "pause", (1, "task0", "owner0")),
            Step(20.0, "resume", (1, "task0", "owner0")),
        ),
    ),
    # Right: what is handed over behind a gap waits in the table until the gap is filled.
    "an update that is handed over and whose reply is lost": Scenario(
        seed=1, ends=50.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.0, "behaviour", ("hook0", "slow")),
            Step(2.0, "notify", (0, "task0", 0, "status")),
            Step(3.0, "disk", ("uncertain", 1.0)),
            *(Step(3.1 + n / 10, "shout", (0, "task0", 1)) for n in range(3)),
            Step(4.2, "notify", (0, "task0", 1, "status")),
        ),
    ),
    # Right: the lease of a queue is renewed while its deliveries take longer than it lasts.
    "a queue that takes longer than its lease": Scenario(
        seed=1, ends=100.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.0, "behaviour", ("hook0", "sluggish")),
            Step(2.0, "burst", (0, "task0", 6)),
        ),
    ),
    # Right: what was answered while the disk was full is stored once there is space again.
    "an answer while the disk is full": Scenario(
        seed=2, ends=60.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.0, "behaviour", ("hook0", "slow")),
            Step(2.0, "notify", (0, "task0", 0, "status")),
            Step(5.0, "disk", ("full", 1.0)),
        ),
    ),
    # The only worker kept the lease of a claim whose reply was lost, for ever.
    "a claim whose reply is lost": Scenario(
        seed=1, postgres=True, ends=40.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.0, "behaviour", ("hook0", "503")),
            Step(2.0, "notify", (0, "task0", 0, "status")),
            Step(2.5, "disk", ("uncertain", 10.0)),
        ),
    ),
    # Deliveries kept the destination that another client had just given to their config.
    "clients that set a config to two destinations at once": Scenario(
        seed=514, receivers=1, twins=True, postgres=True, ends=75.0,
        steps=(
            Step(12.0, "crash", ("recv0", 0.0)),
            Step(22.0, "behaviour", ("hook0", "405")),
            Step(30.8, "notify", (0, "task0", 2, "last")),
            Step(32.765, "rival", (0, "task2", "owner1", "recv0", 1)),
            Step(32.765, "rival", (0, "task2", "owner1", "recv0", 1)),
            Step(32.766, "rival", (0, "task2", "owner0", "hook0", 1)),
            Step(32.767, "rival", (0, "task2", "owner1", "hook0", 1)),
            Step(32.767, "rival", (0, "task2", "owner1", "recv0", 1)),
        ),
    ),
    # Right: what a script had written before it failed is taken back, beside others that succeed.
    "scripts that fail beside others": Scenario(
        seed=2, ends=60.0,
        steps=(
            *(
                Step(0.2 + n / 100, "subscribe", (0, f"task{n}", "owner0", "hook0", "1.0"))
                for n in range(4)
            ),
            Step(9.0, "disk", ("seldom", 40.0)),
            *sorted(
                (
                    *(
                        Step(at + n / 10000, "notify", (0, f"task{n % 4}", at * 10 + n))
                        for at in range(10, 40, 3)
                        for n in range(8)
                    ),
                    *(
                        Step(at + 0.0003 * n, "test", (0, f"task{n}", "owner0"))
                        for at in range(10, 40, 3)
                        for n in range(4)
                    ),
                ),
                key=lambda step: step.at,
            ),
        ),
    ),
    # Right: failures of requests that were under way when their destination asked to wait do not
    # count, so the breaker opens with the fifth one after the wait.
    "failures while a destination waits as it asked to": Scenario(
        seed=21581, webhooks=2, postgres=True, sealed=True, ends=39.0,
        steps=(
            *(
                Step(0.2 + n / 10, "subscribe", (0, f"outage{n}", "patient", "hook1", "1.0"))
                for n in range(6)
            ),
            Step(4.0, "next_answer", ("hook1", "503 Retry-After 7")),
            Step(8.0, "behaviour", ("hook1", "tired")),
            *(Step(8.9, "notify", (0, f"outage{n}", 0)) for n in range(6)),
        ),
    ),
    # Right: so it is after an outage of the database, too.
    "failures while a destination waits after an outage": Scenario(
        seed=20817, workers=1, webhooks=4, postgres=True, ends=75.0,
        steps=(
            Step(0.5, "subscribe", (0, "outage0", "patient", "hook3", "1.0", "jwt", "")),
            Step(1.0, "subscribe", (0, "outage3", "patient", "hook3", "1.0", "jwt", "")),
            Step(1.0, "subscribe", (0, "outage5", "patient", "hook3", "1.0", "jwt", "")),
            Step(9.0, "behaviour", ("hook3", "tired")),
            Step(10.0, "notify", (0, "outage3", 0)),
            Step(10.5, "notify", (0, "outage0", 0)),
            Step(17.0, "notify", (0, "outage3", 1)),
            Step(17.5, "notify", (0, "outage5", 0)),
            Step(25.0, "disk", ("refused", 30.0)),
            Step(40.0, "next_answer", ("hook3", "503 Retry-After 7")),
            Step(45.0, "trigger", ("redrive", "request", 0, 1.0)),
        ),
    ),
    # Right: a failure whose worker died before it stored the result does not count, so the breaker
    # opens with a later one.
    "a worker that dies with a failure that it has not stored": Scenario(
        seed=102612, agents=2, workers=2, receivers=2, postgres=True, ends=41.0,
        steps=(
            Step(0.0, "subscribe", (0, "task0", "owner0", "hook0", "agentvault-0.2", "both", "")),
            Step(0.1, "subscribe", (0, "outage3", "patient", "hook0", "1.0", "jwt", "")),
            Step(0.2, "subscribe", (0, "outage0", "patient", "hook0", "1.0", "jwt", "")),
            Step(0.3, "subscribe", (0, "outage5", "patient", "hook0", "1.0", "jwt", "")),
            Step(0.4, "subscribe", (0, "outage2", "patient", "hook0", "1.0", "jwt", "")),
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "0.2", "jwt", "states")),
            Step(0.5, "subscribe", (0, "outage6", "patient", "hook0", "1.0", "jwt", "")),
            Step(1.0, "subscribe", (0, "outage1", "patient", "hook0", "1.0", "jwt", "")),
            Step(2.0, "await", ("worker0", 60, 5.0)),
            Step(10.0, "behaviour", ("hook0", "500")),
            Step(10.632, "notify", (0, "outage4", 0)),
            Step(10.633, "notify", (0, "outage3", 0)),
            Step(10.637, "notify", (0, "outage2", 0)),
            Step(10.657, "notify", (0, "outage0", 0)),
            Step(10.659, "notify", (0, "outage1", 0)),
            Step(10.661, "notify", (0, "outage5", 0)),
        ),
    ),
    # A queue that was paused when a second worker died with it forgot that the first one had, and
    # all its deliveries were handed out together once it was resumed.
    "a worker that dies with a paused queue, after another one": Scenario(
        seed=102571, agents=3, workers=1, postgres=True, sealed=True, ends=150.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(0.5, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "states")),
            Step(1.0, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(5.0, "trigger", ("crash", "request", 0, 40.0)),
            Step(39.0, "trigger", ("pause", "request", 0, 1.0)),
            Step(54.0, "await", ("worker0", 30, 5.0)),
            Step(60.9, "notify", (0, "task0", 0, "status")),
            Step(61.0, "finish", (1, "task0", "completed")),
        ),
    ),
    # Right: chunks wait for the interval of their subscription, whatever hostile owners send, and
    # until something follows. The end of a task waited, too, if its snapshot was older.
    "chunks that are gathered during a flood": Scenario(
        seed=1, crowded=True, webhooks=2, ends=30.0,
        steps=(
            Step(0.0, "behaviour", ("hook1", "unhurried")),
            *(
                Step(0.1 + n / 100, "subscribe", (0, "evil", f"mallory{n}", "hook1", "1.0"))
                for n in range(18)
            ),
            Step(0.5, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "slowly")),
            Step(0.6, "subscribe", (0, "task1", "owner1", "hook0", "0.3", "jwt", "slowly")),
            Step(2.0, "burst", (0, "evil", 8)),
            *(
                Step(3.0 + n, "notify", (0, f"task{task}", n, "chunk"))
                for n in range(3)
                for task in range(2)
            ),
            Step(7.0, "notify", (0, "task0", 3, "status")),
            Step(8.0, "finish", (0, "task1", "completed")),
            Step(9.0, "notify", (0, "task0", 4, "chunk")),
            Step(10.0, "notify", (0, "task0", 5, "chunk")),
        ),
    ),
    # Right: from the second death in a row on, each counts as an attempt of a queue's first
    # delivery, which goes alone. It waited until the lease of its last worker would have ended.
    "a delivery with which workers die again and again": Scenario(
        seed=1, ends=150.0,
        steps=(
            Step(0.4, "subscribe", (0, "task0", "owner0", "hook0", "1.0", "jwt", "")),
            Step(1.0, "behaviour", ("hook0", "slow")),
            *(Step(1.5, "trigger", ("crash", "request", n, 0.1)) for n in range(9)),
            Step(2.0, "burst", (0, "task0", 4)),
        ),
    ),
    # Right: whoever removes a subscription that began with a snapshot wants no later update.
    "a subscription with a snapshot that is removed": Scenario(
        seed=1, ends=30.0,
        steps=(
            Step(1.0, "join", (0, "late0", "owner0", "hook0")),
            Step(5.0, "unsubscribe", (0, "late0", "owner0")),
            Step(10.0, "notify", (0, "late0", 0)),
        ),
    ),
    # Right: an answer of 410 disables a subscription, so later updates are not stored for it.
    "a subscription with a snapshot whose webhook is gone": Scenario(
        seed=1, ends=30.0,
        steps=(
            Step(1.0, "next_answer", ("hook0", "410")),
            Step(2.0, "join", (0, "late0", "owner0", "hook0")),
            Step(5.0, "notify", (0, "late0", 0)),
        ),
    ),
    # Right: attempts without an address count as failures, which the webhook does not see.
    "a breaker that opens while a name has no address": Scenario(
        seed=973865, ends=60.0,
        steps=(
            Step(1.0, "subscribe", (0, "outage1", "patient", "hook0", "1.0", "jwt", "")),
            Step(1.0, "subscribe", (0, "outage3", "patient", "hook0", "1.0", "jwt", "")),
            Step(1.0, "subscribe", (0, "outage4", "patient", "hook0", "1.0", "jwt", "")),
            Step(1.0, "subscribe", (0, "outage0", "patient", "hook0", "1.0", "jwt", "")),
            Step(11.0, "behaviour", ("hook0", "tired")),
            Step(12.0, "notify", (0, "outage1", 0)),
            Step(12.0, "notify", (0, "outage3", 0)),
            Step(12.0, "notify", (0, "outage0", 0)),
            Step(12.9, "names", ("hook0", "none")),
            Step(14.0, "notify", (0, "outage4", 0)),
            Step(29.0, "names", ("hook0", "back")),
        ),
    ),
    # Right: the client renews what it had fetched before it begins, and finds that it lost it.
    "a client of a mailbox that stands still while it fetches": Scenario(
        seed=3, webhooks=0, receivers=1, readers=2, ends=120.0,
        steps=(
            Step(0.1, "callbacks", ("recv0", "quick")),
            Step(0.2, "fetching", ("recv0", "hanging")),
            Step(0.5, "subscribe", (0, "task0", "owner0", "recv0", "1.0")),
            Step(2.0, "freeze", ("reader0", 25.0)),
            Step(2.1, "notify", (0, "task0", 0)),
        ),
    ),
    # Right: an inbox that forgets what is done no longer knows the receipt of a late client.
    "a client of a mailbox whose receipt is forgotten": Scenario(
        seed=1, webhooks=0, receivers=1, readers=2, ends=120.0,
        steps=(
            Step(0.1, "callbacks", ("recv0", "quick")),
            Step(0.2, "fetching", ("recv0", "hanging")),
            Step(0.5, "subscribe", (0, "task0", "owner0", "recv0", "1.0")),
            Step(2.0, "notify", (0, "task0", 0)),
            Step(3.0, "fetching", ("recv0", "quick")),
            Step(5.0, "freeze", ("reader0", 60.0)),
            Step(40.0, "forget", ("recv0",)),
        ),
    ),
    # Right: a renewal was answered before its client stood still; it heard that once it went on,
    # when another client had the lease.
    "a renewal that is heard after its lease": Scenario(
        seed=1, webhooks=0, receivers=1, readers=2, ends=120.0,
        steps=(
            Step(0.1, "callbacks", ("recv0", "quick")),
            Step(0.2, "fetching", ("recv0", "hanging")),
            Step(0.5, "subscribe", (0, "task0", "owner0", "recv0", "1.0")),
            Step(2.0, "notify", (0, "task0", 0)),
            Step(5.409, "freeze", ("reader0", 25.0)),
        ),
    ),
    # Found: an agent did not send again what was answered, and not settled yet.
    "an inbox that is lost before its sender has settled": Scenario(
        seed=1, agents=2, webhooks=0, receivers=1, recovered=10, ends=60.0,
        steps=(
            Step(0.1, "callbacks", ("recv0", "slow")),
            Step(0.5, "subscribe", (0, "task0", "owner0", "recv0", "1.0")),
            Step(1.0, "backup", ("recv0",)),
            Step(1.5, "trigger", ("lose", "callback", 0, 0.0)),
            Step(2.0, "notify", (1, "task0", 0)),
        ),
    ),
}
# fmt: on

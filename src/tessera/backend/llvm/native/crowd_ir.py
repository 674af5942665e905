"""The LLVM IR text by which the driver sees that other programs want its cores, and what it does about it.

A step that is split waits for its slowest share. Where more threads want to run than there are cores, one of them
stands in a queue for milliseconds, while those that wait for it spin and so keep it there. So the driver looks, at most
every `LOOK_NS` and only while steps are split, at how much of the machine was free or its own since it last looked:
idle time of all processors (`/proc/uptime`) and processor time of this process; and at how long the calling thread
stood in a queue (`/proc/thread-self/schedstat`), which also tells of quotas and of processors that it may not leave.
What was long ago, while this process rested, says nothing of now: then it looks at how many threads want to run at
this moment (`/proc/loadavg`). Otherwise a process that takes turns with others would find the machine as they left it.
Where the threads of a step do not fit in, that step is timed: what its shares take, and how long the team was waited
for beside the largest of them. It runs on the calling thread alone while what the team would spare is less than the
team is waited for. That figure fades with every look, so that teams are tried again.

Without those files nothing is ever crowded. Words of `tessera_crowd`, all 8 bytes wide:

| word | meaning |
| --- | --- |
| 0 | when to look next, in ns of the coarse monotonic clock |
| 1 | threads that fit in |
| 2 | ns that teams were waited for lately, beside their work, while they did not fit in |
| 3 | processors of the machine, which `runtime/plans/native.py` writes; 0: never look |
| 4, 5, 6 | ns of the monotonic clock, of idle processors and of this process at the last look; 0: there was none |
| 7, 8 | the thread that looked, and ns that it had stood in queues |
"""

from __future__ import annotations

from string import Template
from typing import Final

CROWD_WORDS: Final = 9
NEXT_LOOK, FITTING, WAITED, PROCESSORS = range(4)
LOOK_NS: Final = 100_000_000
"""Idle time is told in hundredths of a second; a look takes some 20 us."""
STALE_NS: Final = 2 * LOOK_NS
"""A look says nothing of now after this time, of which the process had less than a quarter."""
ALL_FIT: Final = 2**62

_TEXT: Final = Template("""
@tessera_crowd = global [$words x i64] [i64 0, i64 $all, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0], align 64
@uptime.path = private constant [13 x i8] c"/proc/uptime\\00"
@uptime.form = private constant [19 x i8] c"%*ld.%*ld %ld.%2ld\\00"
@queue.path = private constant [28 x i8] c"/proc/thread-self/schedstat\\00"
@load.path = private constant [14 x i8] c"/proc/loadavg\\00"
@load.form = private constant [16 x i8] c"%*f %*f %*f %ld\\00"
@queue.form = private constant [9 x i8] c"%*ld %ld\\00"

declare i32 @clock_gettime(i32, ptr)
declare i32 @open(ptr, i32, ...)
declare i64 @read(i32, ptr, i64)
declare i32 @close(i32)
declare i32 @sscanf(ptr, ptr, ...)

; What a clock shows, in ns.
define internal i64 @now(i32 %clock) {
  %time = alloca [2 x i64], align 16
  %failure = call i32 @clock_gettime(i32 %clock, ptr %time)
  %seconds = load i64, ptr %time
  %rest.p = getelementptr inbounds i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.p
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}

; The one or two numbers that a form finds in a file; -1 where it finds none.
define internal i64 @numbers(ptr %path, ptr %form, ptr %second) {
entry:
  %text = alloca [64 x i8], align 16
  %first = alloca i64
  store i64 0, ptr %second
  %file = call i32 (ptr, i32, ...) @open(ptr %path, i32 $flags)
  %closed = icmp slt i32 %file, 0
  br i1 %closed, label %none, label %there
there:
  %length = call i64 @read(i32 %file, ptr %text, i64 63)
  %done = call i32 @close(i32 %file)
  %some = icmp sgt i64 %length, 0
  br i1 %some, label %scan, label %none
scan:
  %end = getelementptr i8, ptr %text, i64 %length
  store i8 0, ptr %end
  %found = call i32 (ptr, ptr, ...) @sscanf(ptr %text, ptr %form, ptr %first, ptr %second)
  %any = icmp sgt i32 %found, 0
  br i1 %any, label %told, label %none
told:
  %value = load i64, ptr %first
  ret i64 %value
none:
  ret i64 -1
}

define void @tessera_crowd_look(i64 %coarse) {
entry:
  %rest.p = alloca i64
  %next = add i64 %coarse, $interval
  %before = load atomic i64, ptr @tessera_crowd monotonic, align 8
  %mine = cmpxchg ptr @tessera_crowd, i64 %before, i64 %next monotonic monotonic
  %won = extractvalue { i64, i1 } %mine, 1
  %processors = load i64, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 3)
  %asked = icmp sgt i64 %processors, 0
  %looks = and i1 %won, %asked
  br i1 %looks, label %look, label %end
look:
  %waited.old = load atomic i64, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 2) monotonic, align 8
  %faded = lshr i64 %waited.old, 4
  %waited = sub i64 %waited.old, %faded
  store atomic i64 %waited, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 2) monotonic, align 8
  %idle.s = call i64 @numbers(ptr @uptime.path, ptr @uptime.form, ptr %rest.p)
  %rest = load i64, ptr %rest.p
  %idle.whole = mul i64 %idle.s, 1000000000
  %idle.part = mul i64 %rest, 10000000
  %idle = add i64 %idle.whole, %idle.part
  %own = call i64 @now(i32 2)
  %time = call i64 @now(i32 1)
  %queued = call i64 @numbers(ptr @queue.path, ptr @queue.form, ptr %rest.p)
  %thread = call i64 @pthread_self()
  %time.old = load i64, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 4)
  %idle.old = load i64, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 5)
  %own.old = load i64, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 6)
  %thread.old = load i64, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 7)
  %queued.old = load i64, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 8)
  store i64 %time, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 4)
  store i64 %idle, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 5)
  store i64 %own, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 6)
  store i64 %thread, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 7)
  store i64 %queued, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 8)
  %later = icmp ne i64 %time.old, 0
  %known = icmp sgt i64 %idle, 0 ; some sandboxes show 0 always
  %passed = sub i64 %time, %time.old
  %some.passed = icmp sgt i64 %passed, 0
  %both = and i1 %later, %known
  %weighs = and i1 %both, %some.passed
  br i1 %weighs, label %weigh, label %end
weigh:
  %idle.gone = sub i64 %idle, %idle.old
  %own.gone = sub i64 %own, %own.old
  %free = add i64 %idle.gone, %own.gone
  ; A quarter of a processor that others use is no reason yet.
  %free.4 = mul i64 %free, 4
  %free.up = add i64 %free.4, %passed
  %passed.4 = mul i64 %passed, 4
  %free.lately = sdiv i64 %free.up, %passed.4
  %own.4 = mul i64 %own.gone, 4
  %rested = icmp slt i64 %own.4, %passed
  %past = icmp sgt i64 %passed, $stale
  %stale = and i1 %rested, %past
  br i1 %stale, label %now.here, label %count
now.here:
  %running = call i64 @numbers(ptr @load.path, ptr @load.form, ptr %rest.p) ; this thread is one
  %others = sub i64 %running, 1
  %free.now = sub i64 %processors, %others
  %told = icmp sgt i64 %running, 0
  %free.told = select i1 %told, i64 %free.now, i64 %free.lately
  br label %count
count:
  %free.count = phi i64 [ %free.lately, %weigh ], [ %free.told, %now.here ]
  %at.least = icmp sgt i64 %free.count, 1
  %fits = select i1 %at.least, i64 %free.count, i64 1
  %all = icmp sge i64 %fits, %processors
  %same = icmp eq i64 %thread, %thread.old
  %queued.gone = sub i64 %queued, %queued.old
  %queued.4 = mul i64 %queued.gone, 4
  %long = icmp sgt i64 %queued.4, %passed
  %stood = and i1 %same, %long
  %fits.all = select i1 %all, i64 $all, i64 %fits
  %fitting = select i1 %stood, i64 1, i64 %fits.all
  store atomic i64 %fitting, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 1) monotonic, align 8
  br label %end
end:
  ret void
}

; As @team_member, and notes the processor time of all threads together, that of the thread with the most, and of the
; first thread that and the time from its first share to its last.
define internal void @timed_member(ptr %job) {
entry:
  %begin = call i64 @now(i32 1)
  %own.begin = call i64 @now(i32 3)
  call void @team_member(ptr %job)
  %own.end = call i64 @now(i32 3)
  %end = call i64 @now(i32 1)
  %own = sub i64 %own.end, %own.begin
  %all.p = getelementptr inbounds i64, ptr %job, i64 2
  %most.p = getelementptr inbounds i64, ptr %job, i64 3
  %all.old = atomicrmw add ptr %all.p, i64 %own monotonic
  %most.old = atomicrmw umax ptr %most.p, i64 %own monotonic
  %thread = call i32 @omp_get_thread_num()
  %is.first = icmp eq i32 %thread, 0
  br i1 %is.first, label %first, label %done
first:
  %spent = sub i64 %end, %begin
  %first.p = getelementptr inbounds i64, ptr %job, i64 4
  %spent.p = getelementptr inbounds i64, ptr %job, i64 5
  store i64 %own, ptr %first.p
  store i64 %spent, ptr %spent.p
  br label %done
done:
  ret void
}

; Runs a step whose threads do not fit in: alone or as a team. Word 6 of a step is the ns that all its shares take one
; after the other, 0 until that is known. A team tells them by its threads' processor time. Alone it is time, of which
; what is less than before is believed, and of what is more an eighth: the thread may have stood in a queue, or there
; may be more to do, as data say.
define internal void @run_crowded(ptr %table, ptr %step, i64 %workers) {
entry:
  %work.p = getelementptr inbounds i64, ptr %step, i64 6
  %work = load i64, ptr %work.p
  %unknown = icmp eq i64 %work, 0
  %each = udiv i64 %work, %workers
  %spared = sub i64 %work, %each
  %waited = load atomic i64, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 2) monotonic, align 8
  %pays = icmp sge i64 %spared, %waited
  %shared = or i1 %unknown, %pays
  %start = call i64 @now(i32 1)
  br i1 %shared, label %team, label %alone
alone:
  call void @run_shares(ptr %table, ptr %step, i64 0, i64 1)
  %alone.end = call i64 @now(i32 1)
  %alone.ns = sub i64 %alone.end, %start
  %more = sub i64 %alone.ns, %work
  %eighth = sdiv i64 %more, 8
  %is.more = icmp sgt i64 %more, 0
  %step.up = select i1 %is.more, i64 %eighth, i64 %more
  %alone.work = add i64 %work, %step.up
  br label %keep
team:
  %job = alloca [6 x i64], align 16
  %job.step = getelementptr inbounds i64, ptr %job, i64 1
  %all.p = getelementptr inbounds i64, ptr %job, i64 2
  %most.p = getelementptr inbounds i64, ptr %job, i64 3
  %first.p = getelementptr inbounds i64, ptr %job, i64 4
  %spent.p = getelementptr inbounds i64, ptr %job, i64 5
  store ptr %table, ptr %job
  store ptr %step, ptr %job.step
  store i64 0, ptr %all.p
  store i64 0, ptr %most.p
  %threads = trunc i64 %workers to i32
  call void @GOMP_parallel(ptr @timed_member, ptr %job, i32 %threads, i32 0)
  %team.end = call i64 @now(i32 1)
  %all = load i64, ptr %all.p
  %most = load i64, ptr %most.p
  %first = load i64, ptr %first.p
  %spent = load i64, ptr %spent.p
  %took = sub i64 %team.end, %start
  %after = sub i64 %took, %spent
  %longer = sub i64 %most, %first ; a larger share of another thread is work, and not waited for
  %rest = sub i64 %after, %longer
  %beside = call i64 @llvm.smax.i64(i64 %rest, i64 1)
  %thrice = mul i64 %waited, 3
  %sum = add i64 %thrice, %beside
  %mean = lshr i64 %sum, 2
  %no.mean = icmp eq i64 %waited, 0
  %waited.new = select i1 %no.mean, i64 %beside, i64 %mean
  store atomic i64 %waited.new, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 2) monotonic, align 8
  br label %keep
keep:
  %kept = phi i64 [ %alone.work, %alone ], [ %all, %team ]
  %positive = call i64 @llvm.smax.i64(i64 %kept, i64 1)
  store i64 %positive, ptr %work.p
  ret void
}
declare i64 @llvm.smax.i64(i64, i64)
""")

_CLOSE_ON_EXEC: Final = 0o2000000
"""Of Linux on x86-64 and arm64; reading is 0."""


def crowd_text() -> str:
    """Functions for the driver's module, which has `@run_shares`, `@team_member`, `@pthread_self` and OpenMP's."""
    return _TEXT.substitute(words=CROWD_WORDS, all=ALL_FIT, interval=LOOK_NS, stale=STALE_NS, flags=_CLOSE_ON_EXEC)

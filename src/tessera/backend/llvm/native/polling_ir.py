"""The LLVM IR text of the loop that reads numbers at fixed instants. `profiling/sampling/polling.py` uses it, and says
how its plan is laid out.

A wake of Python's interpreter touches so much memory that has gone cold meanwhile that one every 10 ms takes several
times as long as this loop.
"""

from __future__ import annotations

from string import Template
from typing import Final

TEXT_BYTES: Final = 64
"""How much of a file is read: the number must lie within."""

_LOOP: Final = Template("""
declare i32 @clock_gettime(i32, ptr)
declare i32 @clock_nanosleep(i32, i32, ptr, ptr)
declare i64 @pread(i32, ptr, i64, i64)
declare i32 @sched_yield()

; What a clock shows, in nanoseconds; $missing where there is no such clock any more.
define internal i64 @clock(i32 %clock, ptr %time) {
  %failure = call i32 @clock_gettime(i32 %clock, ptr %time)
  %seconds = load i64, ptr %time
  %rest.p = getelementptr inbounds i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.p
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  %there = icmp eq i32 %failure, 0
  %told = select i1 %there, i64 %sum, i64 $missing
  ret i64 %told
}

; A file's number at a place, from 0, one character between two numbers; $missing where there is none.
define internal i64 @number(i32 %file, i64 %place, ptr %text) {
entry:
  %length = call i64 @pread(i32 %file, ptr %text, i64 $bytes, i64 0)
  br label %next
next:
  %at = phi i64 [ 0, %entry ], [ %at.next, %digit ], [ %at.next, %gap.skipped ]
  %before = phi i64 [ %place, %entry ], [ %before, %digit ], [ %before.next, %gap.skipped ]
  %value = phi i64 [ $missing, %entry ], [ %value.next, %digit ], [ %value, %gap.skipped ]
  %inside = icmp slt i64 %at, %length
  br i1 %inside, label %character, label %end
character:
  %at.next = add i64 %at, 1
  %byte.p = getelementptr inbounds i8, ptr %text, i64 %at
  %byte = load i8, ptr %byte.p
  %figure.i8 = sub i8 %byte, 48
  %is.digit = icmp ult i8 %figure.i8, 10
  %here = icmp eq i64 %before, 0
  br i1 %is.digit, label %digit, label %gap
digit:
  %figure = zext i8 %figure.i8 to i64
  %first = icmp eq i64 %value, $missing
  %so.far = select i1 %first, i64 0, i64 %value
  %tens = mul i64 %so.far, 10
  %longer = add i64 %tens, %figure
  %value.next = select i1 %here, i64 %longer, i64 %value
  br label %next
gap:
  br i1 %here, label %end, label %gap.skipped
gap.skipped:
  %before.next = sub i64 %before, 1
  br label %next
end:
  ret i64 %value
}

define i64 @tessera_poll(ptr %plan) {
entry:
  %time = alloca [2 x i64], align 16
  %text = alloca [$bytes x i8], align 16
  %deadline.p = getelementptr inbounds i64, ptr %plan, i64 1
  %interval.p = getelementptr inbounds i64, ptr %plan, i64 2
  %until.p = getelementptr inbounds i64, ptr %plan, i64 3
  %written.p = getelementptr inbounds i64, ptr %plan, i64 4
  %taken.p = getelementptr inbounds i64, ptr %plan, i64 5
  %capacity.p = getelementptr inbounds i64, ptr %plan, i64 6
  %missed.p = getelementptr inbounds i64, ptr %plan, i64 7
  %rows.p = getelementptr inbounds i64, ptr %plan, i64 8
  %count.p = getelementptr inbounds i64, ptr %plan, i64 9
  %tick.p = getelementptr inbounds i64, ptr %plan, i64 10
  %sources = getelementptr inbounds i64, ptr %plan, i64 11
  %interval = load i64, ptr %interval.p
  %until = load i64, ptr %until.p
  %capacity = load i64, ptr %capacity.p
  %rows = load ptr, ptr %rows.p
  %count = load i64, ptr %count.p
  %width = add i64 %count, 1
  %rest.p = getelementptr inbounds i64, ptr %time, i64 1
  br label %tick
tick:
  %deadline = load i64, ptr %deadline.p
  %seconds = sdiv i64 %deadline, 1000000000
  %rest = srem i64 %deadline, 1000000000
  store i64 %seconds, ptr %time
  store i64 %rest, ptr %rest.p
  br label %sleep
sleep:
  %interruption = call i32 @clock_nanosleep(i32 $monotonic, i32 1, ptr %time, ptr null)
  %interrupted = icmp eq i32 %interruption, $interrupted
  br i1 %interrupted, label %sleep, label %awake
awake:
  %entered = cmpxchg ptr %plan, i64 0, i64 1 acq_rel acquire
  %free = extractvalue { i64, i1 } %entered, 1
  br i1 %free, label %reading, label %ended
ended:
  ret i64 0
reading:
  %written = load i64, ptr %written.p
  %taken = load atomic i64, ptr %taken.p acquire, align 8
  %held = sub i64 %written, %taken
  %full = icmp sge i64 %held, %capacity
  br i1 %full, label %no.room, label %room
no.room:
  store atomic i64 0, ptr %plan release, align 8
  ret i64 2
room:
  %slot = urem i64 %written, %capacity
  %offset = mul i64 %slot, %width
  %row = getelementptr inbounds i64, ptr %rows, i64 %offset
  %now = call i64 @clock(i32 $monotonic, ptr %time)
  store i64 %now, ptr %row
  br label %source
source:
  %i = phi i64 [ 0, %room ], [ %i.next, %stored ]
  %failed = phi i1 [ false, %room ], [ %failed.next, %stored ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %read
one:
  %i.next = add i64 %i, 1
  %i.word = mul i64 %i, $words
  %kind.p = getelementptr inbounds i64, ptr %sources, i64 %i.word
  %handle.p = getelementptr inbounds i64, ptr %kind.p, i64 1
  %place.p = getelementptr inbounds i64, ptr %kind.p, i64 2
  %kind = load i64, ptr %kind.p
  %handle.i64 = load i64, ptr %handle.p
  %handle = trunc i64 %handle.i64 to i32
  %is.clock = icmp eq i64 %kind, 0
  br i1 %is.clock, label %a.clock, label %a.file
a.clock:
  %shown = call i64 @clock(i32 %handle, ptr %time)
  br label %stored
a.file:
  %place = load i64, ptr %place.p
  %found = call i64 @number(i32 %handle, i64 %place, ptr %text)
  br label %stored
stored:
  %value = phi i64 [ %shown, %a.clock ], [ %found, %a.file ]
  %cell = getelementptr inbounds i64, ptr %row, i64 %i.next
  store i64 %value, ptr %cell
  %absent = icmp eq i64 %value, $missing
  %failed.next = or i1 %failed, %absent
  br label %source
read:
  %whole = select i1 %failed, i64 0, i64 1
  %written.next = add i64 %written, %whole
  store atomic i64 %written.next, ptr %written.p release, align 8
  store i64 %deadline, ptr %tick.p
  %next = add i64 %deadline, %interval
  %after = call i64 @clock(i32 $monotonic, ptr %time)
  %late = sub i64 %after, %next
  %is.late = icmp sgt i64 %late, 0
  %intervals = sdiv i64 %late, %interval
  %intervals.up = add i64 %intervals, 1
  %passed = select i1 %is.late, i64 %intervals.up, i64 0
  %missed = load i64, ptr %missed.p
  %missed.next = add i64 %missed, %passed
  store i64 %missed.next, ptr %missed.p
  %skipped = mul i64 %passed, %interval
  %deadline.next = add i64 %next, %skipped
  store i64 %deadline.next, ptr %deadline.p
  store atomic i64 0, ptr %plan release, align 8
  br i1 %failed, label %gone, label %go.on
gone:
  ret i64 3
go.on:
  %due = icmp sge i64 %deadline, %until
  br i1 %due, label %turn, label %tick
turn:
  ret i64 1
}

; Has the loop read no more from now on; waits for a reading under way.
define void @tessera_poll_end(ptr %plan) {
entry:
  br label %again
again:
  %closed = cmpxchg ptr %plan, i64 0, i64 2 acq_rel acquire
  %found = extractvalue { i64, i1 } %closed, 0
  %reading = icmp eq i64 %found, 1
  br i1 %reading, label %wait, label %done
wait:
  %yielded = call i32 @sched_yield()
  br label %again
done:
  ret void
}
""")


def polling_text(*, source_words: int, missing: int, monotonic: int, interrupted: int) -> str:
    """The module. `monotonic` is the number of the clock of deadlines, `interrupted` the errno of a sleep cut short."""
    return _LOOP.substitute(
        bytes=TEXT_BYTES, words=source_words, missing=missing, monotonic=monotonic, interrupted=interrupted
    )

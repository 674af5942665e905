"""The LLVM IR text of what ranks of one host do in shared memory: announce, wait, and reduce small operands at once.

`sharding/transport/lanes.py` says how the memory is laid out that ranks share, and `sharding/transport/native.py` how a
call is laid out; both are written down there once, and the offsets below are handed in from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Final

from tessera.backend.llvm.native.reduction_ir import reductions_text

_WAITING: Final = Template("""
declare i32 @clock_gettime(i32, ptr)
declare i64 @syscall(i64, ...)
declare ptr @memcpy(ptr, ptr, i64)
declare void @$pause_function

define i64 @tessera_now() {
  %time = alloca [2 x i64], align 16
  %failure = call i32 @clock_gettime(i32 $monotonic, ptr %time)
  %seconds = load i64, ptr %time
  %rest.p = getelementptr inbounds i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.p
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}

; Wakes all that sleep on a bell. Those who are about to sleep see that it has another number.
define void @tessera_ring(ptr %bell) {
entry:
  %before = atomicrmw add ptr %bell, i32 1 seq_cst
  %sleepers.p = getelementptr inbounds i8, ptr %bell, i64 $sleepers
  %sleepers = load atomic i32, ptr %sleepers.p seq_cst, align 4
  %any = icmp ne i32 %sleepers, 0
  br i1 %any, label %wake, label %done
wake:
  %woken = call i64 (i64, ...) @syscall(i64 $futex, ptr %bell, i64 1, i64 2147483647, ptr null, ptr null, i64 0)
  br label %done
done:
  ret void
}

; Until a word has a value: 0; 1 after a time limit, 2 once the fault word is set. Looks again and again for a while,
; then sleeps on the bell of whoever writes the word.
define i64 @tessera_await(ptr %word, i64 %wanted, ptr %bell, ptr %fault, i64 %spin, i64 %limit) {
entry:
  %first = load atomic i64, ptr %word acquire, align 8
  %there = icmp eq i64 %first, %wanted
  br i1 %there, label %met, label %begin
begin:
  %limits = alloca [2 x i64], align 16
  %start = call i64 @tessera_now()
  %spun = add i64 %start, %spin
  %sleepers.p = getelementptr inbounds i8, ptr %bell, i64 $sleepers
  br label %look
look:
  %round = phi i32 [ 0, %begin ], [ %round.next, %again ], [ 0, %unspent ]
  %value = load atomic i64, ptr %word acquire, align 8
  %is = icmp eq i64 %value, %wanted
  br i1 %is, label %met, label %pause
pause:
  $pause
  %round.next = add i32 %round, 1
  %full = icmp eq i32 %round.next, 16
  br i1 %full, label %clock, label %again
again:
  br label %look
clock:
  %failed = load atomic i32, ptr %fault acquire, align 4
  %is.failed = icmp ne i32 %failed, 0
  br i1 %is.failed, label %faulted, label %spent
spent:
  %now = call i64 @tessera_now()
  %over = icmp sge i64 %now, %spun
  br i1 %over, label %doze, label %unspent
unspent:
  br label %look
doze:
  %number = load atomic i32, ptr %bell seq_cst, align 4
  %before = atomicrmw add ptr %sleepers.p, i32 1 seq_cst
  %last = load atomic i64, ptr %word seq_cst, align 8
  %last.is = icmp eq i64 %last, %wanted
  br i1 %last.is, label %up, label %sleep
sleep:
  %rest.ns = srem i64 %limit, 1000000000
  %whole.s = sdiv i64 %limit, 1000000000
  %rest.ns.p = getelementptr inbounds i64, ptr %limits, i64 1
  store i64 %whole.s, ptr %limits
  store i64 %rest.ns, ptr %rest.ns.p
  %number.i64 = zext i32 %number to i64
  %slept = call i64 (i64, ...) @syscall(i64 $futex, ptr %bell, i64 0, i64 %number.i64, ptr %limits, ptr null, i64 0)
  br label %up
up:
  %after = atomicrmw sub ptr %sleepers.p, i32 1 seq_cst
  %final = load atomic i64, ptr %word acquire, align 8
  %final.is = icmp eq i64 %final, %wanted
  br i1 %final.is, label %met, label %awake
awake:
  %late = load atomic i32, ptr %fault acquire, align 4
  %is.late = icmp ne i32 %late, 0
  br i1 %is.late, label %faulted, label %timed
timed:
  %end = call i64 @tessera_now()
  %passed = sub i64 %end, %start
  %expired = icmp sge i64 %passed, %limit
  br i1 %expired, label %timeout, label %doze
met:
  ret i64 0
timeout:
  ret i64 1
faulted:
  ret i64 2
}

; Announces an exchange: what it is, where its operand lies, when; the number last, with release order.
define void @tessera_publish(ptr %lane, i64 %number, i64 %fingerprint, i64 %offset) {
  %slot = and i64 %number, $mask
  %record.at = mul i64 %slot, $record
  %record.from = add i64 %record.at, $records
  %record = getelementptr inbounds i8, ptr %lane, i64 %record.from
  %fingerprint.p = getelementptr inbounds i64, ptr %record, i64 1
  %offset.p = getelementptr inbounds i64, ptr %record, i64 2
  %stamp.p = getelementptr inbounds i64, ptr %record, i64 3
  store i64 %fingerprint, ptr %fingerprint.p
  store i64 %offset, ptr %offset.p
  %now = call i64 @tessera_now()
  store i64 %now, ptr %stamp.p
  store atomic i64 %number, ptr %record release, align 8
  call void @tessera_ring(ptr %lane)
  ret void
}

; Says that this rank reads no operand of an exchange any more.
define void @tessera_finish(ptr %lane, i64 %number) {
  %slot = and i64 %number, $mask
  %word.at = mul i64 %slot, 8
  %word.from = add i64 %word.at, $finished
  %word = getelementptr inbounds i8, ptr %lane, i64 %word.from
  store atomic i64 %number, ptr %word release, align 8
  call void @tessera_ring(ptr %lane)
  ret void
}

; What all ranks have, one behind the other: of each so many bytes.
define void @tessera_gather(ptr %result, ptr %parts, i64 %size, i64 %bytes) {
entry:
  br label %part
part:
  %p = phi i64 [ 0, %entry ], [ %p.next, %copy ]
  %p.more = icmp slt i64 %p, %size
  br i1 %p.more, label %copy, label %done
copy:
  %part.pp = getelementptr inbounds ptr, ptr %parts, i64 %p
  %part.p = load ptr, ptr %part.pp
  %to = mul i64 %p, %bytes
  %to.p = getelementptr inbounds i8, ptr %result, i64 %to
  %copied = call ptr @memcpy(ptr %to.p, ptr %part.p, i64 %bytes)
  %p.next = add i64 %p, 1
  br label %part
done:
  ret void
}

; All ranks' small operands, through the slots of their lanes, put together by every rank for itself. A call that comes
; back with 1 is made again as it is, and goes on where it was; `stage` and `peer` of the call say where.
define i64 @tessera_one_shot(ptr %call) {
entry:
  %lanes.p = getelementptr inbounds i64, ptr %call, i64 0
  %parts.p = getelementptr inbounds i64, ptr %call, i64 1
  %size.p = getelementptr inbounds i64, ptr %call, i64 2
  %rank.p = getelementptr inbounds i64, ptr %call, i64 3
  %fault.p = getelementptr inbounds i64, ptr %call, i64 4
  %spin.p = getelementptr inbounds i64, ptr %call, i64 5
  %limit.p = getelementptr inbounds i64, ptr %call, i64 6
  %number.p = getelementptr inbounds i64, ptr %call, i64 7
  %fingerprint.p = getelementptr inbounds i64, ptr %call, i64 8
  %bytes.p = getelementptr inbounds i64, ptr %call, i64 9
  %count.p = getelementptr inbounds i64, ptr %call, i64 10
  %reduce.p = getelementptr inbounds i64, ptr %call, i64 11
  %operand.p = getelementptr inbounds i64, ptr %call, i64 12
  %result.p = getelementptr inbounds i64, ptr %call, i64 13
  %stage.p = getelementptr inbounds i64, ptr %call, i64 14
  %peer.p = getelementptr inbounds i64, ptr %call, i64 15
  %offset.p = getelementptr inbounds i64, ptr %call, i64 16
  %lanes = load ptr, ptr %lanes.p
  %parts = load ptr, ptr %parts.p
  %size = load i64, ptr %size.p
  %rank = load i64, ptr %rank.p
  %fault = load ptr, ptr %fault.p
  %spin = load i64, ptr %spin.p
  %limit = load i64, ptr %limit.p
  %number = load i64, ptr %number.p
  %fingerprint = load i64, ptr %fingerprint.p
  %stage = load i64, ptr %stage.p
  %peer.first = load i64, ptr %peer.p
  %offset = load i64, ptr %offset.p
  %slot = and i64 %number, $mask
  %word.at = mul i64 %slot, 8
  %word.from = add i64 %word.at, $finished
  %record.at = mul i64 %slot, $record
  %record.from = add i64 %record.at, $records
  %memory.at = mul i64 %slot, $slot_bytes
  %memory.from = add i64 %memory.at, $slots
  %read.from = add i64 %memory.from, %offset
  %earlier = sub i64 %number, $depth
  %own.p = getelementptr inbounds ptr, ptr %lanes, i64 %rank
  %own = load ptr, ptr %own.p
  %begun = icmp ne i64 %stage, 0
  br i1 %begun, label %peers, label %free
free:
  %f = phi i64 [ %peer.first, %entry ], [ %f.next, %freed ]
  %f.more = icmp slt i64 %f, %size
  br i1 %f.more, label %one.free, label %publish
one.free:
  %f.lane.p = getelementptr inbounds ptr, ptr %lanes, i64 %f
  %f.lane = load ptr, ptr %f.lane.p
  %f.word = getelementptr inbounds i8, ptr %f.lane, i64 %word.from
  %f.code = call i64 @tessera_await(ptr %f.word, i64 %earlier, ptr %f.lane, ptr %fault, i64 %spin, i64 %limit)
  %f.ok = icmp eq i64 %f.code, 0
  br i1 %f.ok, label %freed, label %f.back
freed:
  %f.next = add i64 %f, 1
  br label %free
f.back:
  store i64 %f, ptr %peer.p
  ret i64 %f.code
publish:
  %memory = getelementptr inbounds i8, ptr %own, i64 %memory.from
  %operand = load ptr, ptr %operand.p
  %bytes = load i64, ptr %bytes.p
  %copied = call ptr @memcpy(ptr %memory, ptr %operand, i64 %bytes)
  call void @tessera_publish(ptr %own, i64 %number, i64 %fingerprint, i64 -1)
  store i64 1, ptr %stage.p
  br label %peers
peers:
  %q.first = phi i64 [ %peer.first, %entry ], [ 0, %publish ]
  br label %one
one:
  %q = phi i64 [ %q.first, %peers ], [ %q.next, %same ]
  %q.more = icmp slt i64 %q, %size
  br i1 %q.more, label %look, label %all
look:
  %q.lane.p = getelementptr inbounds ptr, ptr %lanes, i64 %q
  %q.lane = load ptr, ptr %q.lane.p
  %q.record = getelementptr inbounds i8, ptr %q.lane, i64 %record.from
  %q.code = call i64 @tessera_await(ptr %q.record, i64 %number, ptr %q.lane, ptr %fault, i64 %spin, i64 %limit)
  %q.ok = icmp eq i64 %q.code, 0
  br i1 %q.ok, label %came, label %q.back
came:
  %q.fingerprint.p = getelementptr inbounds i64, ptr %q.record, i64 1
  %q.fingerprint = load i64, ptr %q.fingerprint.p
  %q.same = icmp eq i64 %q.fingerprint, %fingerprint
  br i1 %q.same, label %same, label %other
same:
  %q.memory = getelementptr inbounds i8, ptr %q.lane, i64 %read.from
  %q.part.p = getelementptr inbounds ptr, ptr %parts, i64 %q
  store ptr %q.memory, ptr %q.part.p
  %q.next = add i64 %q, 1
  br label %one
q.back:
  store i64 %q, ptr %peer.p
  ret i64 %q.code
other:
  store i64 %q, ptr %peer.p
  ret i64 3
all:
  %reduce = load ptr, ptr %reduce.p
  %result = load ptr, ptr %result.p
  %count = load i64, ptr %count.p
  call void %reduce(ptr %result, ptr %parts, i64 %size, i64 %count)
  call void @tessera_finish(ptr %own, i64 %number)
  ret i64 0
}
""")

MACHINES: Final[Mapping[str, tuple[int, str, str]]] = {
    "x86_64": (202, "call void @llvm.x86.sse2.pause()", "llvm.x86.sse2.pause()"),
    "aarch64": (98, "call void @llvm.aarch64.hint(i32 1)", "llvm.aarch64.hint(i32)"),
}
"""By machine, the number of the system call futex, and what a waiting loop runs, with its declaration."""


def exchange_text(*, machine: str, monotonic: int, layout: Mapping[str, int], depth: int, slot_bytes: int) -> str:
    """The module for a machine of `MACHINES`. `layout` has the offsets of a lane, `depth` is how many exchanges may be
    under way, `monotonic` the number of the clock.
    """
    futex, pause, pause_function = MACHINES[machine]
    waiting = _WAITING.substitute(
        layout,
        pause=pause,
        pause_function=pause_function,
        futex=futex,
        monotonic=monotonic,
        depth=depth,
        mask=depth - 1,
        slot_bytes=slot_bytes,
    )
    return waiting + reductions_text()

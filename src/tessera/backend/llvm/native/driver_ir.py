"""The LLVM IR text of the native driver: the one function through which every plan runs.

See `runtime/plans/native.py` for the frame and step layout, and `profiling/ring/layout.py` for the record layout; both
are written down there once, as tables, and the offsets below follow them.
"""

from __future__ import annotations

from string import Template

from tessera.backend.llvm.emission.tile_clock import CLOCK
from tessera.backend.llvm.native.crowd_ir import crowd_text

_TEAM = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()

; One member of the team. Fewer threads than asked may have been granted (nested regions, thread limits), so a member
; runs shares thread, thread + granted, thread + 2 * granted, ...
define internal void @team_member(ptr %job) {
entry:
  %step.p = getelementptr inbounds i64, ptr %job, i64 1
  %table = load ptr, ptr %job
  %step = load ptr, ptr %step.p
  %thread = call i32 @omp_get_thread_num()
  %granted = call i32 @omp_get_num_threads()
  %first = zext i32 %thread to i64
  %stride = zext i32 %granted to i64
  call void @run_shares(ptr %table, ptr %step, i64 %first, i64 %stride)
  ret void
}

define internal void @run_team(ptr %table, ptr %step, i64 %workers) {
entry:
  %alone = load volatile i32, ptr @tessera_sequential
  %is.alone = icmp ne i32 %alone, 0
  br i1 %is.alone, label %sequential, label %parallel
sequential:
  call void @run_shares(ptr %table, ptr %step, i64 0, i64 1)
  ret void
parallel:
  %coarse = call i64 @now(i32 6) ; the coarse monotonic clock
  %look.at = load atomic i64, ptr @tessera_crowd monotonic, align 8
  %due = icmp sge i64 %coarse, %look.at
  br i1 %due, label %look, label %ask
look:
  call void @tessera_crowd_look(i64 %coarse)
  br label %ask
ask:
  %fitting = load atomic i64, ptr getelementptr inbounds (i64, ptr @tessera_crowd, i64 1) monotonic, align 8
  %crowded = icmp sgt i64 %workers, %fitting
  br i1 %crowded, label %crowd, label %team
crowd:
  call void @run_crowded(ptr %table, ptr %step, i64 %workers)
  ret void
team:
  %job = alloca [2 x i64], align 16
  %job.step = getelementptr inbounds i64, ptr %job, i64 1
  store ptr %table, ptr %job
  store ptr %step, ptr %job.step
  %threads = trunc i64 %workers to i32
  call void @GOMP_parallel(ptr @team_member, ptr %job, i32 %threads, i32 0)
  ret void
}
"""

_NO_TEAM = """
define internal void @run_team(ptr %table, ptr %step, i64 %workers) {
  call void @run_shares(ptr %table, ptr %step, i64 0, i64 1)
  ret void
}
"""

_DRIVER = Template("""
@tessera_sequential = global i32 0

declare i64 $clock()
declare i64 @pthread_self()

define i64 @tessera_ticks() {
  %now = call i64 $clock()
  ret i64 %now
}

; Runs shares first, first + stride, ... of a step, each with its own part of the workspace.
define internal void @run_shares(ptr %table, ptr %step, i64 %first, i64 %stride) {
entry:
  %kernel = load ptr, ptr %step
  %descriptors.p = getelementptr inbounds i64, ptr %step, i64 1
  %descriptors = load ptr, ptr %descriptors.p
  %workers.p = getelementptr inbounds i64, ptr %step, i64 2
  %workers = load i64, ptr %workers.p
  %workspace.p = getelementptr inbounds i64, ptr %step, i64 3
  %workspace = load ptr, ptr %workspace.p
  %pitch.p = getelementptr inbounds i64, ptr %step, i64 4
  %pitch = load i64, ptr %pitch.p
  %any = icmp slt i64 %first, %workers
  br i1 %any, label %share, label %done
share:
  %worker = phi i64 [ %first, %entry ], [ %next, %share ]
  %offset = mul i64 %worker, %pitch
  %private = getelementptr i8, ptr %workspace, i64 %offset
  call void %kernel(ptr %table, ptr %descriptors, i64 %worker, i64 %workers, ptr %private)
  %next = add i64 %worker, %stride
  %more = icmp slt i64 %next, %workers
  br i1 %more, label %share, label %done
done:
  ret void
}
$team
define internal void @run_step(ptr %table, ptr %step) {
entry:
  %workers.p = getelementptr inbounds i64, ptr %step, i64 2
  %workers = load i64, ptr %workers.p
  %one = icmp eq i64 %workers, 1
  br i1 %one, label %direct, label %team
direct:
  %kernel = load ptr, ptr %step
  %descriptors.p = getelementptr inbounds i64, ptr %step, i64 1
  %descriptors = load ptr, ptr %descriptors.p
  %workspace.p = getelementptr inbounds i64, ptr %step, i64 3
  %workspace = load ptr, ptr %workspace.p
  call void %kernel(ptr %table, ptr %descriptors, i64 0, i64 1, ptr %workspace)
  ret void
team:
  call void @run_team(ptr %table, ptr %step, i64 %workers)
  ret void
}

; Takes the next record of the ring. The sequence number (from 1) is stored last, with release order, and cleared
; first: a reader that finds the number it expects before and after its copy has a whole record.
define internal void @write_record(ptr %ring, ptr %step, i64 %plan, i64 %start, i64 %end) {
entry:
  %capacity.p = getelementptr inbounds i64, ptr %ring, i64 1
  %capacity = load i64, ptr %capacity.p
  %position = atomicrmw add ptr %ring, i64 1 monotonic
  %mask = sub i64 %capacity, 1
  %index = and i64 %position, %mask
  %record.i = shl i64 %index, 3
  %slot = add i64 %record.i, 8
  %record = getelementptr inbounds i64, ptr %ring, i64 %slot
  %r1 = getelementptr inbounds i64, ptr %record, i64 1
  %r2 = getelementptr inbounds i64, ptr %record, i64 2
  %r3 = getelementptr inbounds i64, ptr %record, i64 3
  %r4 = getelementptr inbounds i64, ptr %record, i64 4
  %r5 = getelementptr inbounds i64, ptr %record, i64 5
  %r6 = getelementptr inbounds i64, ptr %record, i64 6
  %workers.p = getelementptr inbounds i64, ptr %step, i64 2
  %workers = load i64, ptr %workers.p
  %id.p = getelementptr inbounds i64, ptr %step, i64 5
  %id = load i64, ptr %id.p
  %thread = call i64 @pthread_self()
  store atomic i64 0, ptr %record monotonic, align 8
  fence release
  store i64 %start, ptr %r1
  store i64 %end, ptr %r2
  store i64 %plan, ptr %r3
  store i64 %id, ptr %r4
  store i64 %workers, ptr %r5
  store i64 %thread, ptr %r6
  %sequence = add i64 %position, 1
  store atomic i64 %sequence, ptr %record release, align 8
  ret void
}

define void @tessera_run(ptr %frame) {
entry:
  %table = load ptr, ptr %frame
  %count.p = getelementptr inbounds i64, ptr %frame, i64 1
  %count = load i64, ptr %count.p
  %steps.p = getelementptr inbounds i64, ptr %frame, i64 2
  %steps = load ptr, ptr %steps.p
  %cell.p = getelementptr inbounds i64, ptr %frame, i64 3
  %cell = load ptr, ptr %cell.p
  %plan.p = getelementptr inbounds i64, ptr %frame, i64 4
  %plan = load i64, ptr %plan.p
  %last.i = shl i64 %count, 3
  %last = getelementptr i64, ptr %steps, i64 %last.i
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %choose
choose:
  %no.cell = icmp eq ptr %cell, null
  br i1 %no.cell, label %plain, label %ask
ask:
  %ring.asked = load atomic ptr, ptr %cell acquire, align 8
  %no.ring = icmp eq ptr %ring.asked, null
  br i1 %no.ring, label %plain, label %recorded
plain:
  %step = phi ptr [ %steps, %choose ], [ %steps, %ask ], [ %step.next, %plain ]
  call void @run_step(ptr %table, ptr %step)
  %step.next = getelementptr i64, ptr %step, i64 8
  %finished = icmp eq ptr %step.next, %last
  br i1 %finished, label %done, label %plain
recorded:
  %rstep = phi ptr [ %steps, %ask ], [ %rstep.next, %recorded ]
  %start = call i64 $clock()
  call void @run_step(ptr %table, ptr %rstep)
  %end = call i64 $clock()
  call void @write_record(ptr %ring.asked, ptr %rstep, i64 %plan, i64 %start, i64 %end)
  %rstep.next = getelementptr i64, ptr %rstep, i64 8
  %rfinished = icmp eq ptr %rstep.next, %last
  br i1 %rfinished, label %done, label %recorded
done:
  ret void
}
""")


def driver_text(*, openmp: bool) -> str:
    """The driver's module. `openmp`: start teams through `GOMP_parallel`, else run shares one after the other."""
    return _DRIVER.substitute(clock=CLOCK, team=_TEAM + crowd_text() if openmp else _NO_TEAM)

"""distbench --help: one screen."""

USAGE = """\
distbench: how fast do these machines multiply matrices together?

Try
  distbench                                         one rank, under a minute
  torchrun --nproc_per_node=3 -m distbench          three ranks: the main form
  distbench -m workload=square workload.n=512,1024  a sweep: one row per cell
  distbench workload=gallery run.dry_run=true       the plan; starts nothing
  distbench list                                    workloads and experiments

Then (RUN: a folder that a run made)
  distbench report RUN           a page to look at; --format terminal, md, csv
  distbench compare BASE NEW     FASTER, SLOWER, SAME or UNSURE, cell by cell
  distbench export RUN           csv, parquet, jsonl, openmetrics
  distbench doctor               what makes numbers wrong or slow here

Settings: key=value, in any order; distbench list names the files
  workload=… .batch .m .n .k     gallery_small gallery batched square
                                 mlp_column mlp_row ceilings
  workload.dtype                 float64 float32 tf32 bfloat16 float16 int8
                                 float8_e4m3fn float8_e5m2 mxfp8 nvfp4
                                 complex64 complex128
  workload.fill, .upload         normal uniform integer zeros, none b ab
  split                          none batch m n k
  collect                        none host gather all_gather reduce topk
                                 reduce_scatter all_reduce
  path                           auto in_place collective p2p shared pinned
                                 fresh pageable pipelined
  engine, drive                  torch numpy cupy, process loop threads
  device, backend                auto cpu cuda, auto gloo nccl
  measure                        default quick thorough burst sustained
  measure.settle .cache .inner   settle first, hot cold, products per sample
  +experiment=health, peak       a bad device; the fastest shape per dtype
  threads, profile               per rank, none torch: a trace of every rank
  run.resume, .timeout_s         a folder to go on with; when a rank is lost
  run.dry_run, .world            the plan of any world
Options: -m sweep  --cfg job  --version  --hydra-help
Tab completion: eval "$(distbench -sc install=bash)"
Exit status: 0 right, 1 a cell failed or is wrong, 2 refused at the start"""

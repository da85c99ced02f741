"""distbench --help: one screen."""

USAGE = """\
distbench: how fast do the machines in front of you multiply matrices together?

  distbench [key=value …]                                  one process, one cell
  torchrun --nproc_per_node=3 -m distbench [key=value …]   three ranks, one per device
  mpirun -np 3 python -m distbench [key=value …]           the same under MPI
  distbench report RUN…                                    records as a Markdown page

Try
  distbench                                                gallery_small, under a minute
  distbench workload=square workload.n=2048 workload.dtype=float64
  distbench -m workload=square workload.n=256,512,1024     a sweep: one row a cell
  distbench +experiment=gpu                                a GPU's bfloat16 rate
  distbench workload=gallery run.dry_run=true run.world=8  the plan, nothing started

Keys                                            values
  workload                                      gallery_small gallery batched square
                                                mlp_column mlp_row
  workload.batch .m .n .k                       sizes: 1024, 1e6
  workload.dtype                                float64 float32 tf32 bfloat16 float16 int8
                                                float8_e4m3fn float8_e5m2 complex64
                                                complex128 mxfp8 nvfp4
  workload.fill                                 normal uniform integer zeros
  workload.upload                               none b ab: copied in within each sample
  split                                         none batch m n k
  collect                                       none host gather all_gather reduce
                                                reduce_scatter all_reduce
  path                                          auto in_place collective p2p shared pinned
  engine, device, backend                       torch numpy, auto cpu cuda, auto gloo nccl
  measure                                       default quick thorough
  threads                                       CPU threads per rank
  run.dry_run, run.timeout_s                    print the plan; seconds until a silent rank is lost

Options
  -m, --multirun   a sweep over comma-separated values    --cfg job     the composed cell
  --version                                               --hydra-help  Hydra's own options

Results: outputs/… or multirun/…/results.jsonl. Exit status: 0 all right, 1 a cell failed or was
wrong, 2 refused before anything was started."""

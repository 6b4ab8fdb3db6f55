import sys,json,time
sys.path[:0]=['.src','tests']
import torch
from headrace.engine import TrainConfig, bench_step, shape_spec
from headrace.engine.layer import *
from headrace.engine.run import deterministic
dev=torch.device('cuda')
spec=shape_spec("llama-8b-vocab-32k",1)
lay=spec.of_kind("layer")[0]
flat=(torch.randn(lay.num_elements,device=dev)*0.02).bfloat16()
acc=torch.zeros(lay.num_elements,device=dev)
for det in (False,True):
  for comp in ("off","static"):
    cfg=TrainConfig(model="m",dataset="d",device="cuda",deterministic=det)
    with deterministic(cfg):
      mod=LayerModule(spec,device=dev,dtype=torch.bfloat16,compile=comp)
      for rows in (4,16):
        x=torch.randn(rows,1024,4096,device=dev).bfloat16(); pos=mod.positions(1024)
        w=trainable(param_views(flat,lay))
        def fb(keep=False):
            i=x.clone().requires_grad_()
            o=mod.forward(w,i,pos)
            if keep: return i,o
            g=backward(o,i,w,x)
            for a,b in zip(param_views(acc,lay).values(),g[1:]): a+=b
        def fo(): 
            with torch.no_grad(): mod.forward_only(w,x,pos)
        res={}
        for name,fn in (("fb",fb),("fo",fo)):
            for _ in range(3): fn()
            torch.cuda.synchronize(); t=time.time()
            for _ in range(10): fn()
            torch.cuda.synchronize(); res[name]=(time.time()-t)/10
        n=lay.num_elements; T=rows*1024
        torch.cuda.synchronize(); m0=torch.cuda.memory_allocated(); k=fb(True); m1=torch.cuda.memory_allocated(); del k
        torch.cuda.reset_peak_memory_stats(); b0=torch.cuda.memory_allocated(); fb(); pk=torch.cuda.max_memory_allocated()-b0
        print("det",det,"compile",comp,"rows",rows,"fb TF",round(6*n*T/res['fb']/1e12),"fo TF",round(2*n*T/res['fo']/1e12),"kept B/token",(m1-m0)/T,"peak B/token",pk/T,flush=True)
for layers,rows,mb,kw in ((12,16,4,{}),(12,16,8,{"compile":"static"}),(12,16,16,{"compile":"static","deterministic":False})):
    cfg=TrainConfig(model="m",dataset="d",device="cuda",compute_dtype="bfloat16",batch_rows=rows,microbatch_rows=mb,max_grad_norm=1e9,commit_every_steps=1000,loss_chunk_tokens=4096,**kw)
    t=time.time(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    try:
        r=bench_step(cfg,spec=shape_spec("llama-8b-vocab-32k",layers),tokens_per_row=1024,slots=(3,),num_steps=4,commit=False)
        n=r["num_params"]; s=r["runs"]["3"]["step_seconds"]
        print(layers,rows,mb,kw,"N",round(n/1e9,2),"s/step",round(s,4),"TFLOPS",round(6*n*rows*1024/s/1e12),r["runs"]["3"]["all_step_seconds"],"passes",r["runs"]["3"]["passes"],"peak GiB",torch.cuda.max_memory_allocated()/2**30, "plan",r["runs"]["3"]["plan"],"wall",time.time()-t,flush=True)
    except Exception:
        import traceback; traceback.print_exc()

import sys,random,time,select,tempfile,traceback
sys.path.insert(0,'/work/c/gconf')
from pathlib import Path
from tests.nodes import Node, KafkaNode, unique
from tests.conformance.groups.peers import SETTINGS
from tests.conformance.groups.raw import *
from tests.conformance.groups.raw import Connection
from tests.conformance.clients import create
from wire.messages.describe_groups import DescribeGroupsRequest
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.list_groups import ListGroupsRequest
from wire.messages.offset_delete import *
from wire.messages.offset_fetch import *
SEED=int(sys.argv[1]); ROUNDS=int(sys.argv[2]); STEPS=int(sys.argv[3]) if len(sys.argv)>3 else 25
S={**SETTINGS,"group.min.session.timeout.ms":100}
sides=[]
nodes=[Node(Path(tempfile.mkdtemp()),S),KafkaNode(Path(tempfile.mkdtemp()),S)]
for n in nodes: n.start()
topic='diff'; 
for n in nodes: create(n.bootstrap,topic,2)
class Side:
    def __init__(s,boot,group):
        s.group=group; s.addr=coordinator_of(boot,group); s.ids={}; s.names={}; s.waiting={}; s.gen=0; s.main=Connection(s.addr)
    def rid(s,name): return s.ids.get(name,'') if name.startswith('m') else name
    def name(s,rid):
        if rid in s.names: return s.names[rid]
        return '' if rid=='' else ('?' if '-' in rid and len(rid)>36 else rid)
    def learn(s,key,rid):
        if rid and rid not in s.names and len(rid)>30: s.names[rid]=key; s.ids[key]=rid
    def close(s):
        s.main.close()
        for c in s.waiting.values(): c.close()
def norm(side,key,resp):
    t=type(resp).__name__
    if t=='JoinGroupResponse':
        side.learn(key,resp.member_id)
        if resp.error_code==0: side.gen=resp.generation_id
        return (t,resp.error_code,resp.generation_id,resp.protocol_type,resp.protocol_name,side.name(resp.leader),resp.skip_assignment,side.name(resp.member_id),tuple(sorted((side.name(m.member_id),m.group_instance_id or '',m.metadata) for m in resp.members)))
    if t=='SyncGroupResponse': return (t,resp.error_code,resp.assignment,resp.protocol_type,resp.protocol_name)
    if t=='HeartbeatResponse': return (t,resp.error_code)
    if t=='LeaveGroupResponse': return (t,resp.error_code,tuple((side.name(m.member_id),m.group_instance_id,m.error_code) for m in resp.members))
    if t=='OffsetCommitResponse': return (t,tuple(sorted((p.partition_index,p.error_code) for tt in resp.topics for p in tt.partitions)))
    if t=='OffsetFetchResponse': return (t,resp.error_code,tuple((g.error_code,tuple(sorted((p.partition_index,p.committed_offset,p.metadata,p.error_code) for tt in g.topics for p in tt.partitions))) for g in resp.groups),tuple(sorted((p.partition_index,p.committed_offset,p.metadata,p.error_code) for tt in resp.topics for p in tt.partitions)))
    if t=='DescribeGroupsResponse':
        g=resp.groups[0]
        return (t,g.error_code,g.group_state,g.protocol_type,g.protocol_data,tuple(sorted((side.name(m.member_id),m.group_instance_id or '',m.member_metadata,m.member_assignment) for m in g.members)))
    if t=='DeleteGroupsResponse': return (t,tuple(r.error_code for r in resp.results))
    if t=='OffsetDeleteResponse': return (t,resp.error_code,tuple(sorted((p.partition_index,p.error_code) for tt in resp.topics for p in tt.partitions)))
    if t=='ListGroupsResponse':
        return (t,resp.error_code,tuple((g.protocol_type,g.group_state,g.group_type) for g in resp.groups if g.group_id==side.group))
    raise Exception(t)
def gen_step(r,k,joins):
    who=lambda: r.choice(joins[-4:]+(['unknown'] if r.random()<.1 else [])) if joins else 'unknown'
    inst=lambda: r.choice([None]*4+['i1','i2'])
    dg=lambda: r.choice([0]*6+[-1,1])
    op=r.choices(['join','rejoin','sync','beat','leave','commit','scommit','fetch','describe','odelete','gdelete','list','empty'],[5,5,7,4,2,3,2,2,4,1,1,1,1])[0]
    if op=='join': return (op,f'm{k}',inst(),r.choice([3,4,5,6,9,9,9]),r.choice([0,0,0,0,1,2,3]),r.choice(['consumer']*6+['connect']))
    if op=='rejoin': return (op,who(),inst() if r.random()<.4 else 'same',r.choice([3,4,5,9,9,9]),r.choice([0,0,0,1]))
    if op=='sync': return (op,who(),dg(),r.choice([3,5,5]),r.choice(['same','same','same',None,'i1']),r.choice([True,True,False]),r.choice(['range']*7+['roundrobin',None]))
    if op=='beat': return (op,who(),dg(),r.choice(['same','same','same',None,'i1']))
    if op=='leave': return (op,[ (r.choice([who(),'']) ,r.choice(['same','same',None,'i1','i2'])) for _ in range(r.choice([1,1,1,2]))],r.choice([0,2,3,5,5]))
    if op=='commit': return (op,who(),dg(),r.choice(['same','same',None,'i1']),r.choice([2,6,8,9]),r.randrange(100))
    if op=='scommit': return (op,r.choice([2,7,9]),r.randrange(100))
    if op=='fetch': return (op,r.choice([1,2,5,7,8,9]),r.random()<.5)
    if op=='describe': return (op,r.choice([0,3,5,6]))
    if op=='list': return (op,r.choice([0,3,4,5]))
    if op=='odelete': return (op,r.choice([0,1,5]))
    if op=='empty': return (op,r.choice(['sync','beat','leave','leave2','commit','fetch','fetch5','describe','gdelete','odelete','join']),r.choice([3,5]))
    return (op,)
PROT=[{'range':subscription('diff')},{'range':subscription('other')},{'range':subscription('diff'),'roundrobin':subscription('diff')},{'roundrobin':subscription('diff')}]
def request(side,step,insts):
    g=side.group; op=step[0]
    I=lambda who,i: insts.get(who) if i=='same' else i
    if op=='join': return join(g,'',instance=step[2] if step[3]>=5 else None,protocols=PROT[step[4]],protocol_type=step[5]),step[3]
    if op=='rejoin': return join(g,side.rid(step[1]),instance=I(step[1],step[2]) if step[3]>=5 else None,protocols=PROT[step[4]]),step[3]
    if op=='sync':
        pt='consumer' if step[3]>=5 else None
        asg={side.rid(m):m.encode() for m in side.ids} if step[5] else {}
        return sync(g,side.gen+step[2],side.rid(step[1]),asg,instance=I(step[1],step[4]) if step[3]>=3 else None,protocol_type=pt,protocol=step[6] if step[3]>=5 else None),step[3]
    if op=='beat': return heartbeat(g,side.gen+step[2],side.rid(step[1]),I(step[1],step[3])),4
    if op=='leave':
        if step[2]<3: return LeaveGroupRequest(group_id=g,member_id=side.rid(step[1][0][0]) if step[1][0][0] else ''),step[2]
        return leave(g,*((side.rid(w) if w else '',I(w,i)) for w,i in step[1])),step[2]
    if op=='commit': return commit(g,side.gen+step[2],side.rid(step[1]),'diff',{0:step[5],7:1},instance=I(step[1],step[3]) if step[4]>=7 else None),step[4]
    if op=='scommit': return commit(g,-1,'','diff',{1:step[2]}),step[1]
    if op=='fetch':
        v=step[1]
        if v>=8: return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=g,topics=None if step[2] else [OffsetFetchRequestTopics(name='diff',partition_indexes=[0,1,7])])]),v
        return OffsetFetchRequest(group_id=g,topics=None if step[2] and v>=2 else [OffsetFetchRequestTopic(name='diff',partition_indexes=[0,1,7])]),v
    if op=='describe': return DescribeGroupsRequest(groups=[g]),step[1]
    if op=='list': return ListGroupsRequest(),step[1]
    if op=='odelete': return OffsetDeleteRequest(group_id=g,topics=[OffsetDeleteRequestTopic(name='diff',partitions=[OffsetDeleteRequestPartition(partition_index=step[1])])]),0
    if op=='gdelete': return DeleteGroupsRequest(groups_names=[g]),2
    if op=='empty':
        w=step[1]
        if w=='sync': return sync('',1,'x'),5
        if w=='join': return join('','x'),9
        if w=='beat': return heartbeat('',1,'x'),4
        if w=='leave': return leave('',('x',None)),5
        if w=='leave2': return LeaveGroupRequest(group_id='',member_id='x'),2
        if w=='commit': return commit('',1 if step[2]==3 else -1,'x','diff',{0:1}),8
        if w=='fetch': return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id='',topics=None)]),9
        if w=='fetch5': return OffsetFetchRequest(group_id='',topics=None),5
        if w=='describe': return DescribeGroupsRequest(groups=['']),6
        if w=='gdelete': return DeleteGroupsRequest(groups_names=['']),2
        if w=='odelete': return OffsetDeleteRequest(group_id='',topics=[]),0
def collect(side,wait):
    out=[]
    end=time.time()+wait
    while True:
        socks={c._socket:k for k,c in side.waiting.items()}
        r,_,_=select.select(list(socks),[],[],max(0,end-time.time())) if socks else ([],[],[])
        if not r: break
        for s in r:
            k=socks[s]; c=side.waiting.pop(k)
            try: out.append((k,norm(side,k[1],c.answer())))
            except EOFError: out.append((k,'EOF'))
            c.close()
    return sorted(out,key=str)
bad=0
for rnd in range(ROUNDS):
    r=random.Random(SEED*1000+rnd); group=unique('d'); sd=[Side(n.bootstrap,group) for n in nodes]; joins=[]; insts={}; log=[]
    for k in range(STEPS):
        step=gen_step(r,k,joins); log.append(step); res=[]
        if step[0]=='join':
            joins.append(f'm{k}'); insts[f'm{k}']=step[2] if step[3]>=5 else None
        key=(k,f'm{k}')
        for s in sd:
            req,v=request(s,step,insts)
            c=Connection(s.addr); c.send(req,v); s.waiting[key]=c
        res=[collect(sd[0],.04),collect(sd[1],.06)]
        if res[0]!=res[1]: # one may be slower
            res=[res[0]+collect(sd[0],.3),res[1]+collect(sd[1],.3)]
            res=[sorted(x,key=str) for x in res]
        log.append(res[0])
        if res[0]!=res[1]:
            # benign: leader differs only
            def strip(x): return [(kk,(v[:5]+v[6:8]) if v[0]=='JoinGroupResponse' else v) for kk,v in x]
            if strip(res[0])==strip(res[1]): break
            flat=lambda x: [v for kk,v in x]
            a,b=flat(res[0]),flat(res[1])
            if len(b)==1 and b[0][0]=='JoinGroupResponse' and b[0][1]==-1: break
            if len(b)==1 and b[0][0]=='OffsetDeleteResponse' and a[0][2] and b[0][2] and {a[0][2][0][1],b[0][2][0][1]}=={86,0}: break
            if any(v[0]=='JoinGroupResponse' and v[1]==25 and v[7]=='' for v in b): break
            if any(x[0]=='gdelete' for x in log if isinstance(x,tuple)) and len(b)==1 and b[0][0]=='JoinGroupResponse' and b[0][1]==25: break
            if a and b and a[-1][0]=='LeaveGroupResponse' and any('i1' in str(x) or 'i2' in str(x) for x in a[-1]) : break
            if len(a)>len(b) and a[0][0]=='JoinGroupResponse' and a[0][1]==27: break
            bad+=1
            print('=== DIFF seed',SEED*1000+rnd,'step',k)
            for l in log[-14:]: print('   ',l)
            print(' ours ',res[0]); print(' kafka',res[1],flush=True)
            break
        gens={s.gen for s in sd}
    for s in sd: s.close()
    if bad>=8: break
print('rounds',rnd+1,'bad',bad)
for n in nodes: n.stop()

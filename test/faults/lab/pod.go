// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/failover/processlog"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// Pod is the engine whose servers are pods. Each world has a simulated kubelet that runs them with the real
// drover-machine and QEMU. The engine needs a Lab with PodAPIs.
type Pod struct {
	tools  *podTools
	worlds *sync.Map // podWorld by World
}

// podTools are shared by all worlds.
type podTools struct {
	prepare        sync.Once
	err            error
	program, image string
}

// NewPod returns a pod engine.
func NewPod() Pod { return Pod{&podTools{}, &sync.Map{}} }

// PodAPIs are the flags of a cluster that has the APIs of pods and the garbage collector.
var PodAPIs = []string{"--all-apis"}

// Name implements Engine.
func (Pod) Name() string { return pod.Name }

// Runs implements Engine. There are no outages of this engine, because it is the cluster itself, and no broken
// images, because a node fetches them.
func (Pod) Runs(workload string) bool {
	return !strings.HasSuffix(workload, "-outage") && !strings.HasSuffix(workload, "-exchange") && workload != "image"
}

// Args implements Engine.
func (Pod) Args(*World) []string {
	return []string{"--vm-driver=pod", "--pod-access-mode=ReadWriteOnce", "--pod-kvm=never"}
}

// Variables implements Engine.
func (Pod) Variables(*World) []string { return nil }

// podStorage is the StorageClass of PVCs. It allows them to grow.
const podStorage = "growing"

// NewVM implements Engine.
func (Pod) NewVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver(pod.Name).Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "64Mi").
		Resource(api.ResourceRootDisk, "16Mi").GracePeriod(5).UserDataSecret(SecretName, SecretKey).
		Spec(func(s *api.VirtualMachineSpec) {
			s.Image = &api.Image{Source: "oci://registry.example/boot:1", PullPolicy: api.PullNever}
			s.StorageClassName = new(podStorage)
		})
}

// Resize implements Engine: a disk grows while the guest runs.
func (Pod) Resize(vm *api.VirtualMachine) {
	vm.Spec.Resource[api.ResourceRootDisk] = resource.MustParse("32Mi")
}

var errNotOfPods = errors.New("driver pod does not have this fault")

// BreakImage implements Engine.
func (Pod) BreakImage(context.Context, *World, string) (image string, err error) {
	return "", errNotOfPods
}

// RepairImage implements Engine.
func (Pod) RepairImage(context.Context, *World) (image string, err error) { return "", errNotOfPods }

// Outage implements Engine.
func (Pod) Outage(context.Context, *World, bool) (back func() error, err error) {
	return nil, errNotOfPods
}

// make builds the program and the guest.
func (t *podTools) make(ctx context.Context, dir string) error {
	dir, err := os.MkdirTemp(dir, "pod-") // several Pod engines may share the lab
	if err != nil {
		return err
	}
	t.program, t.image = filepath.Join(dir, "drover-machine"), filepath.Join(dir, "image")
	if err := errors.Join(framework.BuildMachine(t.program), os.Mkdir(t.image, 0o755)); err != nil {
		return err
	}
	return framework.AssembleBootGuest(ctx, filepath.Join(t.image, "disk"))
}

// podWorld has the kubelet of a world, and its observations.
type podWorld struct {
	w       *World
	network framework.Network
	node    *podtest.Node
	kubelet *podtest.Kubelet

	mu     sync.Mutex
	claims map[types.UID]*rootClaim // by the PVC's UID
	epochs map[types.UID]uint64     // the highest epoch of each object
	runs   map[types.UID]types.UID  // the VirtualMachine of each started pod
	second int64                    // in which the last pod was started
	broken []Violation
}

// rootClaim is the PVC of a root disk, the only part of a server that remains while the server is off.
type rootClaim struct {
	uid                types.UID // of the VirtualMachine
	createdAt          time.Time
	isGone, isReleased bool
}

// Prepare implements Engine.
func (e Pod) Prepare(ctx context.Context, w *World) error {
	e.tools.prepare.Do(func() { e.tools.err = e.tools.make(context.WithoutCancel(ctx), w.labDir()) })
	if e.tools.err != nil {
		return e.tools.err
	}
	p := &podWorld{w: w, claims: map[types.UID]*rootClaim{}, epochs: map[types.UID]uint64{}, runs: map[types.UID]types.UID{}}
	var err error
	if p.network, err = framework.OpenNetwork(ctx, 18); err != nil {
		return err
	}
	e.worlds.Store(w, p)
	p.node = &podtest.Node{
		Kube: w.KubeClient, Dir: filepath.Join(w.Dir, "node"), Program: e.tools.program, Image: e.tools.image, Network: p.network.Name, Address: p.network.Address,
	}
	p.kubelet = podtest.NewKubelet(w.KubeClient, w.Name)
	p.kubelet.NodeName, p.kubelet.Log = w.Name, report(w)
	p.node.SetHooks(p.kubelet)
	p.kubelet.Begin, p.kubelet.Has = p.begin, p.hasObject
	return errors.Join(w.makeForeignClaim(ctx), w.makePodsPossible(ctx), p.kubelet.Start(p.recordObject))
}

// foreignClaim is the PVC of a server of another cluster.
const foreignClaim = "vm-1-" + "0c7a6a3e"

func (w *World) makeForeignClaim(ctx context.Context) error {
	c := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}},
	}}
	c.Name = foreignClaim
	c.Labels = map[string]string{objects.LabelCluster: "another", objects.LabelUID: foreignUID, objects.LabelName: "vm-1"}
	_, err := w.KubeClient.CoreV1().PersistentVolumeClaims(w.Name).Create(ctx, c, metav1.CreateOptions{})
	return err
}

// makePodsPossible creates the StorageClass of PVCs, and waits for the ServiceAccount of pods.
func (w *World) makePodsPossible(ctx context.Context) error {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: podStorage}, Provisioner: "test", AllowVolumeExpansion: new(true)}
	if _, err := w.KubeClient.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return assert.Poll(ctx, "pods can be created in "+w.Name, func() error {
		_, err := w.KubeClient.CoreV1().ServiceAccounts(w.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func (e Pod) world(w *World) *podWorld {
	p, _ := e.worlds.Load(w)
	return p.(*podWorld)
}

// hasObject reports whether an object belongs to this world's cluster.
func (p *podWorld) hasObject(o metav1.Object) bool {
	return o.GetLabels()[objects.LabelCluster] == p.w.ClusterID
}

// begin starts the machine of a pod. No other machine of its VirtualMachine may run (rules.OneServer). Drover distinguishes runs
// by their start times, which pods have in whole seconds. So no two machines start in the same second, as on a real node.
func (p *podWorld) begin(pod *corev1.Pod) (address string, stop func() (int32, string), err error) {
	if p.second == time.Now().Unix() {
		return "", nil, podtest.ErrWaits
	}
	uid := types.UID(pod.Labels[objects.LabelUID])
	others, err := p.processes(uid)
	if err != nil {
		return "", nil, err
	}
	if len(others) > 0 {
		p.addViolation(rules.OneServer, "the pod %s of %s was started while %v ran", pod.UID, pod.Name, others)
	}
	address, stop, err = p.node.Begin(pod)
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.runs[pod.UID], p.second = uid, time.Now().Unix()
	}
	return address, stop, err
}

func (p *podWorld) addViolation(rule rules.Rule, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = append(p.broken, rules.Broken(rule, format, args...))
}

// processes returns the PIDs of the QEMUs of a VirtualMachine, and of the first processes of its containers.
func (p *podWorld) processes(uid types.UID) ([]int, error) {
	all, err := processlog.Processes(uid)
	return append(all, p.machines(uid)...), err
}

// machines returns the PIDs of the first processes of a VirtualMachine's containers.
func (p *podWorld) machines(uid types.UID) (pids []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for run, vm := range p.runs {
		if pid := p.node.PID(run); vm == uid && pid != 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// FirstMachine returns the PID of the first process of the container of a server's first pod, if the pod runs.
func (e Pod) FirstMachine(w *World, uid types.UID) (pids []int) {
	if p := e.world(w); p.countRuns(uid) == 1 {
		pids = p.machines(uid)
	}
	return pids
}

// Machines returns the PIDs of the first processes of a server's containers.
func (e Pod) Machines(w *World, uid types.UID) []int { return e.world(w).machines(uid) }

func (p *podWorld) countRuns(uid types.UID) (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, vm := range p.runs {
		if vm == uid {
			count++
		}
	}
	return count
}

// recordObject records and checks a change of a pod or a PVC.
func (p *podWorld) recordObject(o metav1.Object, isGone bool) {
	if !p.hasObject(o) {
		return
	}
	var epoch uint64
	_, _ = fmt.Sscan(o.GetAnnotations()[objects.AnnotationEpoch], &epoch)
	p.mu.Lock()
	if epoch < p.epochs[o.GetUID()] {
		p.broken = append(p.broken, rules.Broken(rules.OneLeader, "%s has epoch %d after epoch %d", o.GetName(), epoch, p.epochs[o.GetUID()]))
	}
	p.epochs[o.GetUID()] = epoch
	if _, ok := o.(*corev1.PersistentVolumeClaim); ok && o.GetLabels()[objects.LabelVolume] == "" {
		p.recordRootClaim(o, isGone)
	}
	p.mu.Unlock()
	if _, ok := o.(*corev1.Pod); ok && !slices.Contains(o.GetFinalizers(), objects.FinalizerStopped) && p.node.PID(o.GetUID()) != 0 {
		p.addViolation(rules.AsRequested, "the pod %s of %s counts as ended, but is running", o.GetUID(), o.GetName())
	}
}

// recordRootClaim records the PVC of a root disk. A VirtualMachine never gets a second one (rules.OneServer).
func (p *podWorld) recordRootClaim(o metav1.Object, isGone bool) {
	claim, uid := p.claims[o.GetUID()], types.UID(o.GetLabels()[objects.LabelUID])
	if claim == nil {
		for _, other := range p.claims {
			if other.uid == uid {
				p.broken = append(p.broken, rules.Broken(rules.OneServer, "%s has the PVC %s after an earlier PVC", o.GetName(), o.GetUID()))
			}
		}
		claim = &rootClaim{uid: uid, createdAt: o.GetCreationTimestamp().Time}
		p.claims[o.GetUID()] = claim
	}
	claim.isGone, claim.isReleased = isGone, o.GetLabels()[objects.LabelRetained] != ""
}

// Inspect implements Engine. It takes effects from the kubelet's observations.
func (e Pod) Inspect(ctx context.Context, w *World, _ []rules.Process) (Observed, error) {
	o, p := newObserved(), e.world(w)
	claims, err := w.KubeClient.CoreV1().PersistentVolumeClaims(w.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return o, err
	}
	pods, err := w.KubeClient.CoreV1().Pods(w.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return o, err
	}
	foreign := 0
	for n := range claims.Items {
		switch c := &claims.Items[n]; {
		case !p.hasObject(c) && c.DeletionTimestamp == nil && c.Labels[objects.LabelRetained] == "":
			foreign++
		case c.Labels[objects.LabelVolume] == "":
			s, err := p.serverOf(ctx, c, pods.Items)
			if err != nil {
				return o, err
			}
			o.Servers = append(o.Servers, s)
		}
	}
	if foreign != 1 {
		o.Violations = append(o.Violations, rules.Broken(rules.OthersUntouched, "the PVC %s of another cluster is gone or released", foreignClaim))
	}
	left, err := p.findLeft(ctx)
	o.Violations = slices.Concat(o.Violations, left, w.checkReasons())
	text, marshalErr := json.Marshal([]any{claims.Items, pods.Items})
	o.Text = string(text) + p.node.Output()
	p.addEffects(&o)
	return o, errors.Join(err, marshalErr)
}

// checkReasons returns a violation for each status that is not Ready and lacks a reason (rules.Converges).
func (w *World) checkReasons() (broken []Violation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, vm := range w.versions {
		ready := meta.FindStatusCondition(vm.Status.Conditions, api.ConditionReady)
		if ready != nil && ready.Status != metav1.ConditionTrue && (ready.Reason == "" || vm.Status.Reason == "") {
			broken = append(broken, rules.Broken(rules.Converges, "%s waits without a reason: its status is %s", vm.Name, framework.FormatStatus(vm)))
		}
	}
	return broken
}

// serverOf returns the server to which the PVC of a root disk belongs.
func (p *podWorld) serverOf(ctx context.Context, c *corev1.PersistentVolumeClaim, pods []corev1.Pod) (s Server, err error) {
	uid, size := types.UID(c.Labels[objects.LabelUID]), c.Spec.Resources.Requests[corev1.ResourceStorage]
	s = Server{
		UID: uid, ID: objects.ServerID(c.Namespace, c.Name), Name: c.Labels[objects.LabelName], State: driver.StateStopped, CPUMilli: rules.UnknownCPU,
		Released: c.Labels[objects.LabelRetained] != "",
	}
	running, err := processlog.Processes(uid)
	n := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.Name == c.Name && p.hasObject(&pod) })
	s.Config = fmt.Sprintf("root=%s QEMUs=%d machines=%d", size.String(), len(running), len(p.machines(uid)))
	if n < 0 {
		return s, err
	}
	settings := objects.ReadSettings(&pods[n])
	s.Config += fmt.Sprintf(" cpu=%d memory=%d", settings.CPUMilli, settings.MemoryBytes)
	if pods[n].Status.Phase == corev1.PodRunning {
		s.State = podState(ctx, machine.Machine{Path: p.node.RunFolder(pods[n].UID), Mark: string(uid)})
	}
	return s, err
}

// podState asks the QEMU of a pod for its state.
func podState(ctx context.Context, m machine.Machine) driver.State {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	status, err := m.Status(ctx)
	if err != nil {
		return driver.State("without an answer: " + err.Error())
	}
	if state := machineStates[status]; state != "" {
		return state
	}
	return driver.State(status)
}

// findLeft returns the leftovers of VirtualMachines that do not exist any more (rules.NoOrphans).
func (p *podWorld) findLeft(ctx context.Context) (broken []Violation, err error) {
	exists := map[string]bool{}
	for _, vm := range p.w.Existing() {
		exists[string(vm.UID)] = true
	}
	for uid, name := range p.w.names() {
		if exists[uid] {
			continue
		}
		left, listErr := p.listLeft(ctx, types.UID(uid))
		err = errors.Join(err, listErr)
		if len(left) > 0 {
			broken = append(broken, rules.Broken(rules.NoOrphans, "%s is gone, and %v are left", name, left))
		}
	}
	return broken, err
}

// listLeft returns the processes and objects of a VirtualMachine. PVCs do not count: they are servers.
func (p *podWorld) listLeft(ctx context.Context, uid types.UID) (left []string, err error) {
	pids, err := p.processes(uid)
	for _, pid := range pids {
		left = append(left, fmt.Sprintf("process %d", pid))
	}
	selected := metav1.ListOptions{LabelSelector: objects.LabelUID + "=" + string(uid)}
	secrets, secretErr := p.w.KubeClient.CoreV1().Secrets(p.w.Name).List(ctx, selected)
	budgets, budgetErr := p.w.KubeClient.PolicyV1().PodDisruptionBudgets(p.w.Name).List(ctx, selected)
	pods, podErr := p.w.KubeClient.CoreV1().Pods(p.w.Name).List(ctx, selected)
	if err := errors.Join(err, secretErr, budgetErr, podErr); err != nil {
		return nil, err
	}
	for _, o := range secrets.Items {
		left = append(left, "Secret "+o.Name)
	}
	for _, o := range budgets.Items {
		left = append(left, "PodDisruptionBudget "+o.Name)
	}
	for _, o := range pods.Items {
		left = append(left, "Pod "+o.Name)
	}
	return left, nil
}

// addEffects adds the effects on servers.
func (p *podWorld) addEffects(o *Observed) {
	names, reported := p.w.names(), p.w.reportedRuns()
	p.mu.Lock()
	defer p.mu.Unlock()
	o.Violations = append(o.Violations, p.broken...)
	for _, c := range p.claims {
		name := names[string(c.uid)]
		effects := o.Effects[name]
		effects.Creates++
		switch {
		case c.isReleased:
			effects.Releases++
		case c.isGone:
			effects.Deletes++
		}
		o.Effects[name] = effects
		o.Created[c.uid] = c.createdAt
	}
	for run, uid := range p.runs {
		name := names[string(uid)]
		effects := o.Effects[name]
		effects.Runs++
		o.Effects[name] = effects
		if !reported[run] {
			o.Unreported[name]++
		}
	}
}

// reportedRuns returns the runs that any version of a status has named.
func (w *World) reportedRuns() map[types.UID]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[types.UID]bool{}
	for _, vm := range w.versions {
		if vm.Status.Server != nil {
			all[types.UID(vm.Status.Server.Run)] = true
		}
	}
	return all
}

// CleanUp implements Engine: it ends the machines. The objects stay until the lab is closed.
func (e Pod) CleanUp(ctx context.Context, w *World) error {
	known, ok := e.worlds.LoadAndDelete(w)
	if !ok {
		return nil
	}
	p := known.(*podWorld)
	p.kubelet.Stop()
	for run := range p.runs {
		if pid := p.node.PID(run); pid != 0 { // its pod was not reported as started
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return p.network.Close(ctx)
}

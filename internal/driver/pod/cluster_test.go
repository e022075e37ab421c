// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// shared is a real etcd and kube-apiserver with the controllers that collect garbage. It has no
// nodes: a kubelet of the tests acts for them.
var shared *framework.Cluster

func TestMain(m *testing.M) {
	os.Exit(framework.RunTests(m, &shared, framework.ClusterOptions{Args: []string{"--all-apis"}}))
}

const (
	clusterID = "cluster-1"
	nodeName  = "node-1"
	// growing is a StorageClass whose volumes can grow.
	growing = "growing"
)

var vmResource = schema.GroupVersionResource{Group: "cloudnative.tw", Version: "v1alpha1", Resource: "virtualmachines"}

// world is a namespace of the shared cluster with a kubelet.
type world struct {
	kube      kubernetes.Interface
	vms       dynamic.ResourceInterface
	namespace string // empty for all but those of other worlds
	// cluster is the id of the cluster that drivers are opened with.
	cluster string
	kubelet *kubelet
}

// namespacePrefix begins the names of the namespaces that worlds have for themselves.
const namespacePrefix = "pods-"

// has reports whether an object is of the world, and so no other world's kubelet acts on it.
func (w *world) has(o metav1.Object) bool {
	return w.namespace == o.GetNamespace() || w.namespace == "" && !strings.HasPrefix(o.GetNamespace(), namespacePrefix)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	assert.NoError(t, grantRole())
	return newWorldIn(t, shared)
}

// newIsolatedWorld is newWorld with a cluster id of its own, for tests that count or check what a driver
// releases: drivers with the same id do that in all namespaces.
func newIsolatedWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.cluster += "-" + w.namespace
	return w
}

// newWorldIn makes a namespace in a cluster.
func newWorldIn(t *testing.T, c *framework.Cluster) *world {
	t.Helper()
	binary := rest.CopyConfig(c.Config)
	binary.ContentType = runtime.ContentTypeProtobuf // which costs less than JSON
	kube := kubernetes.NewForConfigOrDie(binary)
	made, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: namespacePrefix}}, metav1.CreateOptions{})
	assert.NoError(t, err)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: growing}, Provisioner: "test", AllowVolumeExpansion: new(true)}
	if _, err := kube.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	waitForServiceAccount(t, kube, made.Name)
	w := &world{kube, dynamic.NewForConfigOrDie(c.Config).Resource(vmResource).Namespace(made.Name), made.Name, clusterID, nil}
	w.kubelet = startKubelet(t, w)
	return w
}

// waitForServiceAccount waits until pods can be created in a namespace.
func waitForServiceAccount(t *testing.T, kube kubernetes.Interface, namespace string) {
	t.Helper()
	assert.Eventually(t, "the default ServiceAccount", func(t testing.TB) error {
		_, err := kube.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

// open opens a driver, as another controller of the cluster would, with the rights of one.
func (w *world) open(t *testing.T) *Driver {
	t.Helper()
	return openAs(t, shared.Config, w.cluster, kit.DefaultCallTimeout)
}

// openAs opens a driver of a cluster id by a connection to the shared cluster.
func openAs(t *testing.T, config *rest.Config, id string, within time.Duration) *Driver {
	t.Helper()
	d, ok := openWith(t, config, id, within, false).(*Driver)
	if !ok {
		t.Fatal("a driver without --pod-streams has streams")
	}
	return d
}

// openWith is openAs with a value of --pod-streams.
func openWith(t *testing.T, config *rest.Config, id string, within time.Duration, withStreams bool) driver.Driver {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Impersonate.UserName = "system:serviceaccount:drover-system:drover-controller"
	o := DefaultOptions()
	o.Objects.AccessMode, o.CallTimeout, o.Fetch, o.Streams = string(corev1.ReadWriteOnce), within, nil, withStreams
	d, err := o.Open(driver.Environment{ClusterID: id, Cluster: config, Clock: clock.RealClock{}})
	assert.NoError(t, err)
	return d
}

// grantRole gives the controller what the manifest allows it, and nothing else.
var grantRole = sync.OnceValue(func() error {
	root, err := framework.RepositoryRoot()
	if err != nil {
		return err
	}
	binary, err := framework.DroverBinary()
	if err != nil {
		return err
	}
	args := []string{"kubectl", "--kubeconfig", shared.Kubeconfig, "apply"}
	for _, file := range []string{"rbac/namespace.yaml", "rbac/rbac.yaml", "pod/role.yaml", "pod-streams/role.yaml"} {
		args = append(args, "-f", filepath.Join(root, "config", file))
	}
	out, err := exec.CommandContext(context.Background(), binary, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
})

// server is the server of a VirtualMachine. It has its record, as the status has it.
type server struct {
	driver.ServerSpec

	w *world
	d *Driver
	// failWrites makes the controller end before it has written the record.
	failWrites bool
}

// newServer creates a VirtualMachine and returns its server, which is not there yet.
func (w *world) newServer(t *testing.T, name string) *server {
	t.Helper()
	vm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cloudnative.tw/v1alpha1", "kind": "VirtualMachine", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"resource": map[string]any{"cpu": "1", "memory": "32Mi"}},
	}}
	created, err := w.vms.Create(t.Context(), vm, metav1.CreateOptions{})
	assert.NoError(t, err)
	return &server{w: w, d: w.open(t), ServerSpec: driver.ServerSpec{
		Target: driver.Target{UID: created.GetUID(), Epoch: 1}, Namespace: w.namespace, Name: name, Power: driver.PowerOn,
		CPUMilli: 1000, MemoryBytes: 32 << 20, RootDiskBytes: 1 << 20, GracePeriod: 30 * time.Second,
		Image: driver.Image{Source: "oci://registry.example/boot:1"}, StorageClassName: new(growing),
	}}
}

// newServer returns a server of a new world.
func newServer(t *testing.T) (*world, *server) {
	t.Helper()
	w := newWorld(t)
	return w, w.newServer(t, "web")
}

// owner is the VirtualMachine as a controller knows it.
func (s *server) owner(uid types.UID) (driver.Owner, bool) {
	return driver.Owner{NamespacedName: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, Labels: s.Labels}, uid == s.UID
}

// ensure calls Ensure as the controller does, which records objects before they are created.
func (s *server) ensure(t testing.TB) (driver.Server, error) {
	t.Helper()
	for range 6 {
		got, err := s.d.Ensure(t.Context(), s.ServerSpec)
		first, isFirst := errors.AsType[*driver.RecordFirstError](err)
		switch {
		case isFirst:
			if s.Objects = first.Objects; first.Failure != nil {
				return got, first.Failure
			}
			continue
		case err == nil && !s.failWrites:
			s.Objects = got.Objects
		}
		return got, err
	}
	t.Fatalf("%s has objects recorded without end: %+v", s.Name, s.Objects)
	return driver.Server{}, nil
}

// reach repeats Ensure until the server is in a state.
func (s *server) reach(t *testing.T, want driver.State) (got driver.Server) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("%s is %s", s.Name, want), func(t testing.TB) (err error) {
		if got, err = s.ensure(t); err == nil && got.State != want {
			err = fmt.Errorf("it is %s: %s, %w", got.State, got.Progress, got.Err)
		}
		return err
	})
	return got
}

// turn changes the power state.
func (s *server) turn(t *testing.T, power driver.Power, want driver.State) {
	t.Helper()
	s.Power = power
	s.reach(t, want)
}

func (s *server) base() string { return objects.BaseName(s.Name, s.UID) }

func (s *server) pod(t testing.TB) *corev1.Pod {
	t.Helper()
	p, err := s.w.kube.CoreV1().Pods(s.Namespace).Get(t.Context(), s.base(), metav1.GetOptions{})
	assert.NoError(t, err)
	return p
}

func (s *server) list(t testing.TB) driver.Server {
	t.Helper()
	all, err := s.d.List(t.Context(), s.UID)
	if err != nil || len(all) != 1 {
		t.Fatalf("the list has %+v, %v, want one server", all, err)
	}
	return all[0]
}

// deleteAll repeats Delete until nothing is left.
func (s *server) deleteAll(t *testing.T) {
	t.Helper()
	assert.Eventually(t, s.Name+" is removed", func(t testing.TB) error {
		err := s.d.Delete(t.Context(), s.Target, false)
		if errors.Is(err, driver.ErrNotFound) {
			return nil
		}
		return errors.Join(err, errors.New("something is left"))
	})
}

// wantGone waits until the cluster has collected what is left of a server whose VirtualMachine is
// deleted.
func (s *server) wantGone(t *testing.T) {
	t.Helper()
	assert.NoError(t, s.w.vms.Delete(t.Context(), s.Name, metav1.DeleteOptions{}))
	assert.Eventually(t, "nothing is left of "+s.Name, func(t testing.TB) error {
		var left []string
		selected := metav1.ListOptions{LabelSelector: objects.LabelUID + "=" + string(s.UID)}
		secrets, err1 := s.w.kube.CoreV1().Secrets(s.Namespace).List(t.Context(), selected)
		claims, err2 := s.w.kube.CoreV1().PersistentVolumeClaims(s.Namespace).List(t.Context(), selected)
		budgets, err3 := s.w.kube.PolicyV1().PodDisruptionBudgets(s.Namespace).List(t.Context(), selected)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		for _, list := range []runtime.Object{secrets, claims, budgets} {
			_ = meta.EachListItem(list, func(o runtime.Object) error {
				left = append(left, o.(metav1.Object).GetName())
				return nil
			})
		}
		if len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// kubelet acts for the scheduler, the kubelet and the provisioner of volumes in one world.
type kubelet struct {
	w            *world
	changed      chan struct{}
	pods, claims cache.SharedIndexInformer
	// begin starts the machine of a pod and returns the pod's address, and a function that
	// stops it and returns its exit code and message.
	begin func(*corev1.Pod) (address string, stop func() (int32, string), err error)
	// node is where it runs pods.
	node string
	// ignoresStop reports whether the guest of a pod ignores the request to stop.
	ignoresStop func(*corev1.Pod) bool

	mu sync.Mutex
	// stop has the pods that run, and begun those that ever did.
	stop  map[types.UID]func() (int32, string)
	begun map[types.UID]bool
	// initializes is set while the init containers of new pods do not end.
	initializes bool
	// makesDisks is set while the guests of new pods do not run yet.
	makesDisks bool
	// isSlow is set while the volumes of pods that have ended cannot be unmounted.
	isSlow bool
	// killAt is when a guest is killed that was asked to stop.
	killAt map[types.UID]time.Time
}

// unreachable is an address at which nothing answers.
const unreachable = "192.0.2.1"

func startKubelet(t *testing.T, w *world) *kubelet {
	t.Helper()
	k := &kubelet{w: w, node: nodeName, changed: make(chan struct{}, 1), stop: map[types.UID]func() (int32, string){}, begun: map[types.UID]bool{}, killAt: map[types.UID]time.Time{}}
	k.ignoresStop = func(*corev1.Pod) bool { return false }
	k.begin = func(*corev1.Pod) (string, func() (int32, string), error) {
		return unreachable, func() (int32, string) { return 0, "" }, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	known := informers.NewSharedInformerFactoryWithOptions(w.kube, 0, informers.WithNamespace(w.namespace))
	wake := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { k.wakeUp() }, UpdateFunc: func(any, any) { k.wakeUp() }, DeleteFunc: func(any) { k.wakeUp() },
	}
	k.pods, k.claims = known.Core().V1().Pods().Informer(), known.Core().V1().PersistentVolumeClaims().Informer()
	for _, i := range []cache.SharedIndexInformer{k.pods, k.claims} {
		assert.NoError(t, assert.ErrorOf(i.AddEventHandler(wake)))
	}
	known.Start(ctx.Done())
	var all sync.WaitGroup
	all.Go(func() { k.run(ctx, t) })
	t.Cleanup(func() {
		cancel()
		all.Wait()
		known.Shutdown()
		for _, stop := range k.stop {
			_, _ = stop()
		}
	})
	return k
}

// How long the kubelet waits when nothing has changed: for what it could not do yet, and for nothing.
const (
	retryPause = 20 * time.Millisecond
	idlePause  = time.Second
)

// errWaits is of a pod for which the kubelet waits.
var errWaits = errors.New("it waits")

// run acts after each change. What the kubelet knows may be outdated: then its writes are conflicts.
func (k *kubelet) run(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		pause := idlePause
		for _, err := range append(k.syncClaims(ctx), k.syncPods(ctx)...) {
			if err != nil {
				pause = retryPause
			}
			if err != nil && !errors.Is(err, errWaits) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				t.Logf("kubelet: %v", err)
			}
		}
		select {
		case <-k.changed:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// wakeUp has the kubelet look at its pods and PVCs.
func (k *kubelet) wakeUp() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// set changes how the kubelet acts from now on.
func (k *kubelet) set(change func(*kubelet)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k)
	k.wakeUp()
}

func (k *kubelet) syncPods(ctx context.Context) (errs []error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, known := range k.pods.GetStore().List() {
		if p := known.(*corev1.Pod); k.w.has(p) {
			errs = append(errs, k.syncPod(ctx, p.DeepCopy()))
		}
	}
	return errs
}

func (k *kubelet) syncPod(ctx context.Context, p *corev1.Pod) error {
	pods := k.w.kube.CoreV1().Pods(p.Namespace)
	stop, runs := k.stop[p.UID]
	if p.DeletionTimestamp == nil {
		return k.runPod(ctx, p)
	}
	switch {
	case p.Status.Phase == corev1.PodRunning && runs:
		return k.stopPod(ctx, p, stop)
	case p.Status.Phase == corev1.PodPending && p.Spec.NodeName != "":
		return k.endUnstarted(ctx, p)
	case !runs && *p.DeletionGracePeriodSeconds > 0 && !k.isSlow:
		return pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &p.UID}})
	}
	return nil
}

// runPod binds a pod to the node, and starts it there.
func (k *kubelet) runPod(ctx context.Context, p *corev1.Pod) error {
	switch {
	case len(p.Spec.SchedulingGates) > 0, p.Spec.NodeSelector[noNode] != "":
		return nil
	case p.Spec.NodeName == "":
		return k.w.kube.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: k.node}}, metav1.CreateOptions{})
	case k.begun[p.UID], p.Status.Phase != corev1.PodPending, isWithoutImage(p), k.initializes && len(p.Spec.InitContainers) > 0:
		return nil
	case !k.canMount(ctx, p):
		return errWaits
	}
	return k.beginPod(ctx, p)
}

// noNode is a label that no node has.
const noNode = "nowhere"

// isWithoutImage reports whether a pod mounts an image that no registry has.
func isWithoutImage(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Image != nil && strings.Contains(v.Image.Reference, "absent") })
}

// canMount reports whether the Secret of a pod exists. No kubelet starts the pod before.
func (k *kubelet) canMount(ctx context.Context, p *corev1.Pod) bool {
	name := objects.SecretOf(p)
	if name == "" {
		return true
	}
	_, err := k.w.kube.CoreV1().Secrets(p.Namespace).Get(ctx, name, metav1.GetOptions{})
	return err == nil
}

// codeKilled is the exit code of a container that was killed.
const codeKilled = 137

// writeStatus writes the status of a pod as a kubelet does, which is the manager of its fields.
func (k *kubelet) writeStatus(ctx context.Context, p *corev1.Pod) error {
	_, err := k.w.kube.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{FieldManager: "kubelet"})
	return err
}

// inferredEnd is what a kubelet reports of a container that it does not find.
var inferredEnd = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: codeKilled, Reason: "ContainerStatusUnknown"}}

// endUnstarted reports the end of a pod that was deleted before its machine was started. Of containers that come
// after an init container which has not ended, a kubelet reports for ever that they wait.
func (k *kubelet) endUnstarted(ctx context.Context, p *corev1.Pod) error {
	p.Status.Phase = corev1.PodFailed
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: objects.ContainerName, State: inferredEnd}}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
	for n, c := range p.Spec.InitContainers {
		p.Status.ContainerStatuses[0].State = waits
		p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: waits})
		p.Status.InitContainerStatuses[n].State = []corev1.ContainerState{inferredEnd, waits}[min(n, 1)]
	}
	return k.writeStatus(ctx, p)
}

// lose reports that the runtime has lost the container of a pod, which may run all the same.
func (k *kubelet) lose(t *testing.T, p *corev1.Pod) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	p.Status.Phase = corev1.PodFailed
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: objects.ContainerName, RestartCount: 1, State: inferredEnd}}
	assert.NoError(t, k.writeStatus(t.Context(), p))
	delete(k.stop, p.UID)
}

// stopPod ends the machine of a pod, as soon as its guest allows that.
func (k *kubelet) stopPod(ctx context.Context, p *corev1.Pod, stop func() (int32, string)) error {
	ignored, isDue := k.ignoresStop(p), k.isKillDue(p)
	if ignored && !isDue {
		return errWaits
	}
	code, message := stop()
	if ignored {
		code = codeKilled
	}
	return k.endPod(ctx, p, code, message)
}

// isKillDue reports whether the time has passed that a deleted pod has to stop by itself. Like a
// kubelet, it counts that from when it sees the deletion, and again when there is less.
func (k *kubelet) isKillDue(p *corev1.Pod) bool {
	at := time.Now().Add(time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
	if before, ok := k.killAt[p.UID]; !ok || at.Before(before) {
		k.killAt[p.UID] = at
	}
	return time.Now().After(k.killAt[p.UID])
}

// endPod reports the end of a pod.
func (k *kubelet) endPod(ctx context.Context, p *corev1.Pod, code int32, message string) error {
	reason := "Completed"
	p.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		p.Status.Phase, reason = corev1.PodFailed, "Error"
	}
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, Reason: reason, FinishedAt: metav1.Now()}}
	err := k.writeStatus(ctx, p)
	if err == nil {
		delete(k.stop, p.UID) // else it is reported again
	}
	return err
}

func (k *kubelet) beginPod(ctx context.Context, p *corev1.Pod) error {
	address, stop, err := k.begin(p)
	if err != nil {
		return err
	}
	k.stop[p.UID], k.begun[p.UID] = stop, true
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: objects.ContainerName, ContainerID: "test://" + string(p.UID), Started: new(!k.makesDisks), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
	if err = k.writeStatus(ctx, p); err != nil {
		_, _ = stop() // the next try begins another one
		delete(k.stop, p.UID)
		delete(k.begun, p.UID)
	}
	return err
}

// protection is the finalizer of a PVC that a pod may use.
const protection = "kubernetes.io/pvc-protection"

// syncClaims binds and grows claims, and removes the finalizers of those that are deleted and unused.
func (k *kubelet) syncClaims(ctx context.Context) (errs []error) {
	for _, known := range k.claims.GetStore().List() {
		c := known.(*corev1.PersistentVolumeClaim).DeepCopy()
		if !k.w.has(c) {
			continue
		}
		claims := k.w.kube.CoreV1().PersistentVolumeClaims(c.Namespace)
		var err error
		wants, has := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
		switch {
		case c.DeletionTimestamp != nil && !slices.Contains(c.Finalizers, protection): // others hold it
		case c.DeletionTimestamp != nil:
			pod := strings.TrimSuffix(c.Name, "-"+c.Labels[objects.LabelVolume])
			if _, err := k.w.kube.CoreV1().Pods(c.Namespace).Get(ctx, pod, metav1.GetOptions{}); err == nil {
				continue // it uses the volume
			}
			c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == protection })
			_, err = claims.Update(ctx, c, metav1.UpdateOptions{})
		case wants.Cmp(has) != 0:
			c.Status.Phase, c.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: wants}
			_, err = claims.UpdateStatus(ctx, c, metav1.UpdateOptions{})
		}
		errs = append(errs, err)
	}
	return errs
}

// recordOf returns what is recorded of an object, or nil.
func (s *server) recordOf(kind string) *driver.Object {
	n := slices.IndexFunc(s.Objects, func(o driver.Object) bool { return o.Kind == kind })
	if n < 0 {
		return nil
	}
	return &s.Objects[n]
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package podtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// Kubelet acts for the scheduler, the kubelet and the provisioner of volumes. Its exported fields may be changed by
// Set, or before Start.
type Kubelet struct {
	// Kube reaches the cluster.
	Kube kubernetes.Interface
	// Has reports whether an object is one that it acts on.
	Has func(metav1.Object) bool
	// Begin starts the machine of a pod and returns the pod's address, and a function that stops it and returns its
	// exit code and message, also when it has ended.
	Begin func(*corev1.Pod) (address string, stop func() (int32, string), err error)
	// NodeName is where it runs pods.
	NodeName string
	// RequestStop asks the guest of a pod to stop, and reports whether the guest ignores that, or has yet to stop.
	RequestStop func(*corev1.Pod) bool
	// HasExited reports whether the machine of a pod has ended by itself.
	HasExited func(*corev1.Pod) bool
	// HasStarted reports whether the startup probe of a pod succeeds. Nil stands for a probe that succeeds at once, or
	// never if MakesDisks is set.
	HasStarted func(*corev1.Pod) bool
	// Log gets what could not be done.
	Log func(format string, args ...any)

	changed      chan struct{}
	pods, claims cache.SharedIndexInformer
	end          func()

	sync.Mutex

	// Running has the pods that run, and Begun those that ever did.
	Running map[types.UID]func() (int32, string)
	Begun   map[types.UID]bool
	// Initializes is set while the init containers of new pods do not end.
	Initializes bool
	// MakesDisks is set while the guests of new pods do not run yet.
	MakesDisks bool
	// IsSlow is set while the volumes of pods that have ended cannot be unmounted.
	IsSlow bool
	// killAt is when a guest is killed that was asked to stop.
	killAt map[types.UID]time.Time
}

// Unreachable is an address at which nothing answers.
const Unreachable = "192.0.2.1"

// NewKubelet returns a kubelet of a namespace, or of all if that is empty, whose machines are not there.
func NewKubelet(kube kubernetes.Interface, namespace string) *Kubelet {
	known := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	return &Kubelet{
		Kube: kube, Has: func(metav1.Object) bool { return true }, Log: func(string, ...any) {},
		RequestStop: func(*corev1.Pod) bool { return false }, HasExited: func(*corev1.Pod) bool { return false },
		Begin: func(*corev1.Pod) (string, func() (int32, string), error) {
			return Unreachable, func() (int32, string) { return 0, "" }, nil
		},
		pods: known.Core().V1().Pods().Informer(), claims: known.Core().V1().PersistentVolumeClaims().Informer(),
		changed: make(chan struct{}, 1), Running: map[types.UID]func() (int32, string){}, Begun: map[types.UID]bool{}, killAt: map[types.UID]time.Time{},
	}
}

// Start has the kubelet act until the caller calls Stop. It also reports each object that it sees to see, unless that
// is nil.
func (k *Kubelet) Start(see func(o metav1.Object, isGone bool)) error {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	k.end = func() {
		cancel()
		all.Wait()
	}
	for _, i := range []cache.SharedIndexInformer{k.pods, k.claims} {
		if _, err := i.AddEventHandler(k.handler(see)); err != nil {
			return err
		}
		all.Go(func() { i.RunWithContext(ctx) })
	}
	all.Go(func() { k.run(ctx) })
	return nil
}

func (k *Kubelet) handler(see func(o metav1.Object, isGone bool)) cache.ResourceEventHandler {
	changed := func(known any, isGone bool) {
		if o, ok := known.(metav1.Object); ok && see != nil {
			see(o, isGone)
		}
		k.wakeUp()
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { changed(o, false) }, UpdateFunc: func(_, o any) { changed(o, false) }, DeleteFunc: func(o any) { changed(o, true) },
	}
}

// Stop ends the kubelet and the machines that run.
func (k *Kubelet) Stop() {
	k.end()
	for _, stop := range k.Running {
		_, _ = stop()
	}
}

// How long the kubelet waits when nothing has changed: with work that it could not do yet, and without.
const (
	retryPause = 20 * time.Millisecond
	idlePause  = time.Second
)

// ErrWaits is of a pod for which the kubelet waits, as for its Begin.
var ErrWaits = errors.New("it waits")

// run acts after each change. What the kubelet knows may be outdated: then its writes are conflicts.
func (k *Kubelet) run(ctx context.Context) {
	for ctx.Err() == nil {
		pause := idlePause
		for _, err := range append(k.syncClaims(ctx), k.syncPods(ctx)...) {
			if err != nil {
				pause = retryPause
			}
			if err != nil && !errors.Is(err, ErrWaits) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				k.Log("kubelet: %v", err)
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
func (k *Kubelet) wakeUp() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// Set changes how the kubelet acts from now on.
func (k *Kubelet) Set(change func(*Kubelet)) {
	k.Lock()
	defer k.Unlock()
	change(k)
	k.wakeUp()
}

func (k *Kubelet) syncPods(ctx context.Context) (errs []error) {
	k.Lock()
	defer k.Unlock()
	for _, known := range k.pods.GetStore().List() {
		if p := known.(*corev1.Pod); k.Has(p) {
			errs = append(errs, k.syncPod(ctx, p.DeepCopy()))
		}
	}
	return errs
}

func (k *Kubelet) syncPod(ctx context.Context, p *corev1.Pod) error {
	if _, runs := k.Running[p.UID]; !runs && p.Status.Phase == corev1.PodRunning && hasOthers(p) {
		return k.syncOthers(ctx, p)
	}
	return k.syncMachine(ctx, p)
}

// syncMachine starts or ends the machine of a pod.
func (k *Kubelet) syncMachine(ctx context.Context, p *corev1.Pod) error {
	pods := k.Kube.CoreV1().Pods(p.Namespace)
	stop, runs := k.Running[p.UID]
	switch {
	case p.Status.Phase == corev1.PodRunning && runs && k.HasExited(p):
		code, message := stop()
		return k.EndPod(ctx, p, code, message)
	case p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && runs:
		return k.probe(ctx, p)
	case p.DeletionTimestamp == nil:
		return k.runPod(ctx, p)
	case p.Status.Phase == corev1.PodRunning && runs:
		return k.stopPod(ctx, p, stop)
	case p.Status.Phase == corev1.PodPending && p.Spec.NodeName != "":
		return k.endUnstarted(ctx, p)
	case !runs && *p.DeletionGracePeriodSeconds > 0 && !k.IsSlow:
		return pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &p.UID}})
	}
	return nil
}

// hasOthers reports whether a pod has containers that webhooks have added.
func hasOthers(p *corev1.Pod) bool { return len(p.Spec.Containers) > 1 }

// syncOthers ends what runs beside the machine of a pod that has ended, once the pod is deleted or has a deadline,
// whose time is over.
func (k *Kubelet) syncOthers(ctx context.Context, p *corev1.Pod) error {
	if p.DeletionTimestamp == nil && p.Spec.ActiveDeadlineSeconds == nil {
		return nil
	}
	p.Status.Phase = corev1.PodFailed
	if p.Spec.ActiveDeadlineSeconds != nil {
		p.Status.Reason, p.Status.Message = "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
	}
	for n := range p.Status.ContainerStatuses[1:] {
		p.Status.ContainerStatuses[n+1].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 143, Reason: "Error", FinishedAt: metav1.Now()}}
	}
	return k.writeStatus(ctx, p)
}

// runPod binds a pod to the node, and starts it there.
func (k *Kubelet) runPod(ctx context.Context, p *corev1.Pod) error {
	switch {
	case len(p.Spec.SchedulingGates) > 0, p.Spec.NodeSelector[NoNode] != "":
		return nil
	case p.Spec.NodeName == "":
		return k.Kube.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: k.NodeName}}, metav1.CreateOptions{})
	case k.Begun[p.UID], p.Status.Phase != corev1.PodPending, isWithoutImage(p), k.Initializes && len(p.Spec.InitContainers) > 0:
		return nil
	case !k.canMount(ctx, p):
		return ErrWaits
	}
	return k.beginPod(ctx, p)
}

// NoNode is a label that no node has.
const NoNode = "nowhere"

// isWithoutImage reports whether a pod mounts an image that no registry has.
func isWithoutImage(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Image != nil && strings.Contains(v.Image.Reference, "absent") })
}

// canMount reports whether the Secret of a pod exists. No kubelet starts the pod before.
func (k *Kubelet) canMount(ctx context.Context, p *corev1.Pod) bool {
	name := objects.SecretOf(p)
	if name == "" {
		return true
	}
	_, err := k.Kube.CoreV1().Secrets(p.Namespace).Get(ctx, name, metav1.GetOptions{})
	return err == nil
}

// CodeKilled is the exit code of a container that was killed.
const CodeKilled = 137

// writeStatus writes the status of a pod as a kubelet does, which is the manager of its fields.
func (k *Kubelet) writeStatus(ctx context.Context, p *corev1.Pod) error {
	_, err := k.Kube.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{FieldManager: "kubelet"})
	return err
}

// inferredEnd is the state that a kubelet reports of a container that it does not find.
var inferredEnd = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: CodeKilled, Reason: "ContainerStatusUnknown"}}

// endUnstarted reports the end of a pod that was deleted before its machine was started. Of containers that come
// after an init container which has not ended, a kubelet reports for ever that they wait.
func (k *Kubelet) endUnstarted(ctx context.Context, p *corev1.Pod) error {
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

// Lose reports that the runtime has lost the container of a pod, which may still run.
func (k *Kubelet) Lose(ctx context.Context, p *corev1.Pod) error {
	k.Lock()
	defer k.Unlock()
	p.Status.Phase = corev1.PodFailed
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: objects.ContainerName, RestartCount: 1, LastTerminationState: inferredEnd,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
	}}
	delete(k.Running, p.UID)
	return k.writeStatus(ctx, p)
}

// RemoveGroup reports that the control group of a pod was removed, whose container was lost.
func (k *Kubelet) RemoveGroup(ctx context.Context, p *corev1.Pod) error {
	k.Lock()
	defer k.Unlock()
	p.Status.ContainerStatuses[0].State = inferredEnd
	return k.writeStatus(ctx, p)
}

// stopPod ends the machine of a pod, as soon as its guest allows that.
func (k *Kubelet) stopPod(ctx context.Context, p *corev1.Pod, stop func() (int32, string)) error {
	ignored, isDue := k.RequestStop(p), k.isKillDue(p)
	if ignored && !isDue {
		return ErrWaits
	}
	code, message := stop()
	if ignored {
		code = CodeKilled
	}
	return k.EndPod(ctx, p, code, message)
}

// isKillDue reports whether the time has passed that a deleted pod has to stop by itself. Like a
// kubelet, it counts that from when it sees the deletion, and again when there is less.
func (k *Kubelet) isKillDue(p *corev1.Pod) bool {
	at := time.Now().Add(time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
	if before, ok := k.killAt[p.UID]; !ok || at.Before(before) {
		k.killAt[p.UID] = at
	}
	return time.Now().After(k.killAt[p.UID])
}

// EndPod reports the end of a pod.
func (k *Kubelet) EndPod(ctx context.Context, p *corev1.Pod, code int32, message string) error {
	reason := "Completed"
	p.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		p.Status.Phase, reason = corev1.PodFailed, "Error"
	}
	if hasOthers(p) {
		p.Status.Phase = corev1.PodRunning
	}
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, Reason: reason, FinishedAt: metav1.Now()}}
	err := k.writeStatus(ctx, p)
	if err == nil {
		delete(k.Running, p.UID) // else it is reported again
	}
	return err
}

func (k *Kubelet) beginPod(ctx context.Context, p *corev1.Pod) error {
	address, stop, err := k.Begin(p)
	if err != nil {
		return err
	}
	k.Running[p.UID], k.Begun[p.UID] = stop, true
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: objects.ContainerName, ContainerID: "test://" + string(p.UID), Started: new(k.hasStarted(p)), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	for _, c := range p.Spec.Containers[1:] {
		running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, ContainerID: "test://" + c.Name, State: running})
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
	if err = k.writeStatus(ctx, p); err != nil {
		_, _ = stop() // the next try begins another one
		delete(k.Running, p.UID)
		delete(k.Begun, p.UID)
	}
	return err
}

// hasStarted reports whether the machine of a pod has started, which it has at once where nothing probes that.
func (k *Kubelet) hasStarted(p *corev1.Pod) bool {
	return !k.MakesDisks && (k.HasStarted == nil || p.Spec.Containers[0].StartupProbe == nil || k.HasStarted(p))
}

// probe reports that the machine of a pod has started.
func (k *Kubelet) probe(ctx context.Context, p *corev1.Pod) error {
	status := &p.Status.ContainerStatuses[0]
	switch {
	case k.HasStarted == nil, *status.Started:
		return nil
	case !k.hasStarted(p):
		return ErrWaits
	}
	status.Started = new(true)
	return k.writeStatus(ctx, p)
}

// Protection is the finalizer of a PVC that a pod may use.
const Protection = "kubernetes.io/pvc-protection"

// syncClaims binds and grows claims, and removes the finalizers of those that are deleted and unused.
func (k *Kubelet) syncClaims(ctx context.Context) (errs []error) {
	for _, known := range k.claims.GetStore().List() {
		c := known.(*corev1.PersistentVolumeClaim).DeepCopy()
		if !k.Has(c) {
			continue
		}
		claims := k.Kube.CoreV1().PersistentVolumeClaims(c.Namespace)
		var err error
		requested, actual := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
		switch {
		case c.DeletionTimestamp != nil && !slices.Contains(c.Finalizers, Protection): // others hold it
		case c.DeletionTimestamp != nil:
			pod := strings.TrimSuffix(c.Name, "-"+c.Labels[objects.LabelVolume])
			if _, err := k.Kube.CoreV1().Pods(c.Namespace).Get(ctx, pod, metav1.GetOptions{}); err == nil {
				continue // it uses the volume
			}
			c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == Protection })
			_, err = claims.Update(ctx, c, metav1.UpdateOptions{})
		case requested.Cmp(actual) != 0:
			c.Status.Phase, c.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: requested}
			_, err = claims.UpdateStatus(ctx, c, metav1.UpdateOptions{})
		}
		errs = append(errs, err)
	}
	return errs
}

// Finish ends the machine of a pod by itself.
func (k *Kubelet) Finish(ctx context.Context, p *corev1.Pod) error {
	k.Lock()
	defer k.Unlock()
	return k.EndPod(ctx, p, 0, "")
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/machines"
	"cloudnative.tw/drover/internal/machine/control"
)

// machineOf returns where the machine of a pod is reached. ok is false if it does not run, and for
// the pod of an earlier version, which has no control channel.
func machineOf(p *corev1.Pod) (m machines.Machine, ok bool) {
	status := machineStatus(p)
	if p.DeletionTimestamp != nil || p.Status.PodIP == "" || status == nil || status.State.Running == nil {
		return m, false
	}
	for _, c := range p.Spec.Containers {
		n := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == controlPortName })
		if c.Name == containerName && n >= 0 {
			return machines.Machine{
				UID: types.UID(p.Labels[LabelUID]), Pod: p.UID, Nonce: p.Annotations[AnnotationNonce],
				Address: net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(c.Ports[n].ContainerPort))),
			}, true
		}
	}
	return m, false
}

// isPaused reports whether the guest is paused, as was seen last. Until it was seen, that is so if
// this driver has begun to pause it.
func (i *instance) isPaused() bool {
	if last, ok := i.driver.machines.Last(i.pod.UID); ok {
		return last.State == control.StatePaused
	}
	return i.pod.Annotations[AnnotationPaused] != ""
}

// setPaused pauses a guest that runs, or has it go on. The pod has that recorded from before the
// guest is paused until it goes on, for another process that cannot reach the machine.
func (c *convergence) setPaused(ctx context.Context, paused bool) error {
	if status := machineStatus(c.pod); status == nil || status.State.Running == nil || c.isPaused() == paused {
		return nil
	}
	at, ok := machineOf(c.pod)
	if !ok {
		return driver.Errorf(driver.ErrRetry, "spec.action: the pod %s has no address, or is of an earlier version of Drover, which cannot pause it: restart it", c.key)
	}
	if !paused {
		if err := c.driver.machines.Resume(ctx, at); err != nil {
			return resumeError(err)
		}
		return c.annotatePod(ctx, AnnotationPaused, "")
	}
	if err := c.annotatePod(ctx, AnnotationPaused, "true"); err != nil {
		return err
	}
	return pauseError(c.driver.machines.Pause(ctx, at))
}

func pauseError(err error) error {
	if err == nil {
		return nil
	}
	return driver.Errorf(driver.ErrRetry, "spec.action: pausing the machine: %w", err)
}

func resumeError(err error) error {
	return driver.Errorf(driver.ErrRetry, "spec.action: resuming the machine: %w", err)
}

// annotatePod sets an annotation of the pod, or removes it if the value is empty.
func (c *convergence) annotatePod(ctx context.Context, key, value string) error {
	if c.pod.Annotations[key] == value {
		return nil
	}
	return c.updatePod(ctx, c.spec.Epoch, func(p *corev1.Pod) {
		delete(p.Annotations, key)
		if value != "" {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value)
		}
	})
}

// Usage implements driver.Driver. Machines that cannot be reached are missing.
func (d *Driver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if len(uids) == 0 {
		return nil, nil
	}
	ctx, cancel := d.withCallTimeout(ctx)
	defer cancel()
	pods, err := d.knownPods(ctx, uids...)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, driver.Errorf(driver.ErrRetry, "sample the usage: %w", err)
	}
	return d.sample(ctx, pods)
}

// sample asks machines what they do and have used, and has those looked at again that do something
// else than before.
func (d *Driver) sample(ctx context.Context, pods []*corev1.Pod) ([]driver.Usage, error) {
	var all []machines.Machine
	memory := map[types.UID]int64{}
	for _, p := range pods {
		if at, ok := machineOf(p); ok {
			all, memory[at.UID] = append(all, at), (&instance{pod: p}).settings().MemoryBytes
		}
	}
	samples, changed, err := d.machines.Sample(ctx, all)
	for n := range samples {
		samples[n].MemoryBytes = min(samples[n].MemoryBytes, memory[samples[n].UID])
	}
	for _, uid := range changed {
		for _, queue := range d.watches.Keys() {
			queue.Add(uid)
		}
	}
	return samples, err
}

// sampleFirst asks all machines when a watch begins: another process may have paused them.
func (d *Driver) sampleFirst(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.CallTimeout)
	defer cancel()
	pods, err := d.knownPods(ctx)
	if err == nil {
		_, err = d.sample(ctx, pods)
	}
	if err != nil && ctx.Err() == nil {
		d.Log.Info("Machines cannot be asked what they do", "cause", err.Error())
	}
}

// Probe implements driver.Prober: QEMU accepts connections for a guest that does not listen, so the
// machine says whether its guest has answered.
func (d *Driver) Probe(ctx context.Context, uid types.UID, port int32) error {
	if err := driver.CheckUID(uid); err != nil {
		return err
	}
	ctx, cancel := d.withCallTimeout(ctx)
	defer cancel()
	pods, err := d.knownPods(ctx, uid)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if at, ok := machineOf(p); ok {
			return probeError(port, d.machines.Probe(ctx, at, port))
		}
	}
	return driver.Errorf(driver.ErrRetry, "the machine of UID %s does not run, or is of an earlier version of Drover, which cannot probe it: restart it", uid)
}

func probeError(port int32, err error) error {
	if errors.Is(err, control.ErrUnknown) {
		return driver.Errorf(driver.ErrInvalid, "tcpSocket.port is %d: it must be the port of one of spec.ports with protocol TCP, since nothing else leads to the guest", port)
	}
	return err
}

// indexUID is the index of pods by the UID of the VirtualMachine.
const indexUID = "uid"

func uidOf(o any) ([]string, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil, nil
	}
	return []string{m.GetLabels()[LabelUID]}, nil
}

// knownPods returns the pods of servers that were not released, all if no UID is given: those of the
// watch, or live ones if none is open. They may be out of date.
func (d *Driver) knownPods(ctx context.Context, uids ...types.UID) ([]*corev1.Pod, error) {
	var pods []*corev1.Pod
	if watched := d.pods.Load(); watched != nil {
		pods = watchedPods(*watched, uids)
	} else {
		listed, err := d.Client.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: d.selector(uids...)})
		if err != nil {
			return nil, explain("list", kindPod, types.NamespacedName{}, err)
		}
		for n := range listed.Items {
			pods = append(pods, &listed.Items[n])
		}
	}
	return slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
		return !d.isNamed(p) || p.Labels[LabelRetained] != "" || len(uids) > 0 && !slices.Contains(uids, types.UID(p.Labels[LabelUID]))
	}), nil
}

func watchedPods(watched cache.Indexer, uids []types.UID) []*corev1.Pod {
	var found []any
	if len(uids) == 0 {
		found = watched.List()
	}
	for _, uid := range uids {
		objects, _ := watched.ByIndex(indexUID, string(uid)) // only an unknown index is an error
		found = append(found, objects...)
	}
	var pods []*corev1.Pod
	for _, o := range found {
		if p, ok := o.(*corev1.Pod); ok {
			pods = append(pods, p)
		}
	}
	return pods
}

// forgetMachines forgets those whose pods a complete list did not find.
func (d *Driver) forgetMachines(found []*instance) {
	present := map[types.UID]bool{}
	for _, i := range found {
		if i.pod != nil {
			present[i.pod.UID] = true
		}
	}
	d.machines.Forget(func(pod types.UID) bool { return present[pod] })
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/machines"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/control"
)

// setPaused pauses a guest that runs, or has it go on. The pod has that recorded from before the
// guest is paused until it goes on, for another process that cannot reach the machine.
func (c *convergence) setPaused(ctx context.Context, paused bool) error {
	if !instance.IsRunning(c.Pod) || c.IsPaused() == paused {
		return nil
	}
	at, ok := instance.MachineOf(c.Pod)
	if !ok {
		return driver.Errorf(driver.ErrRetry, "spec.action: the pod %s has no address", c.Key)
	}
	if !paused {
		if err := c.driver.machines.Resume(ctx, at); err != nil {
			return driver.Errorf(driver.ErrRetry, "spec.action: resuming the machine: %w", err)
		}
		return c.annotatePod(ctx, objects.AnnotationPaused, "")
	}
	if err := c.annotatePod(ctx, objects.AnnotationPaused, "true"); err != nil {
		return err
	}
	if err := c.driver.machines.Pause(ctx, at); err != nil {
		return driver.Errorf(driver.ErrRetry, "spec.action: pausing the machine: %w", err)
	}
	return nil
}

// Usage implements driver.Driver. Machines that cannot be reached are missing.
func (d *Driver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if len(uids) == 0 {
		return nil, nil
	}
	ctx, cancel := d.calls.Limit(ctx)
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
		if at, ok := instance.MachineOf(p); ok {
			all, memory[at.UID] = append(all, at), objects.ReadSettings(p).MemoryBytes
		}
	}
	samples, changed, err := d.machines.Sample(ctx, all)
	for n := range samples {
		samples[n].MemoryBytes = min(samples[n].MemoryBytes, memory[samples[n].UID])
	}
	d.watches.Notify(changed...)
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
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	pods, err := d.knownPods(ctx, uid)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if at, ok := instance.MachineOf(p); ok {
			return probeError(port, d.machines.Probe(ctx, at, port))
		}
	}
	return driver.Errorf(driver.ErrRetry, "the machine of UID %s does not run", uid)
}

func probeError(port int32, err error) error {
	if errors.Is(err, control.ErrUnknown) {
		return driver.Errorf(driver.ErrInvalid, "tcpSocket.port is %d: it must be the port of one of spec.ports with protocol TCP, since nothing else leads to the guest", port)
	}
	return err
}

// knownPods returns the pods of servers that were not released, all if no UID is given: those of the
// watch, or live ones if none is open. They may be out of date.
func (d *Driver) knownPods(ctx context.Context, uids ...types.UID) ([]*corev1.Pod, error) {
	pods, ok := d.reader.KnownPods(uids...)
	if !ok {
		listed, err := d.Client.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: objects.Selector(d.Objects.ClusterID, uids...)})
		if err != nil {
			return nil, objects.Explain("list", objects.KindPod, types.NamespacedName{}, err)
		}
		for n := range listed.Items {
			pods = append(pods, &listed.Items[n])
		}
	}
	wanted := sets.New(uids...)
	return slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
		return !d.reader.IsNamed(p) || p.Labels[objects.LabelRetained] != "" || len(wanted) > 0 && !wanted.Has(types.UID(p.Labels[objects.LabelUID]))
	}), nil
}

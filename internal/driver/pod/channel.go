// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/guests"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/machines"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

// setPaused pauses or resumes a guest that runs. The pod records it as paused from before it is paused
// until it is resumed, for another process that cannot reach the machine.
func (c *convergence) setPaused(ctx context.Context, paused bool) error {
	if !objects.IsRunning(c.server.Pod) || c.server.IsPaused() == paused {
		return nil
	}
	at, ok := instance.MachineOf(c.server.Pod)
	if !ok {
		return driver.Errorf(driver.ErrRetry, "spec.action: the pod %s does not have an address", c.server.Key)
	}
	if !paused {
		if err := c.driver.machines.Resume(ctx, at); err != nil {
			return driver.Errorf(driver.ErrRetry, "spec.action: resuming the machine: %w", err)
		}
		return c.writer.annotatePod(ctx, objects.AnnotationPaused, "")
	}
	if err := c.writer.annotatePod(ctx, objects.AnnotationPaused, "true"); err != nil {
		return err
	}
	if err := c.driver.machines.Pause(ctx, at); err != nil {
		return driver.Errorf(driver.ErrRetry, "spec.action: pausing the machine: %w", err)
	}
	return nil
}

// Usage implements driver.Driver. Machines that cannot be reached are missing in the result.
func (d *Driver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if len(uids) == 0 {
		return nil, nil
	}
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	pods, err := d.reader.KnownPods(ctx, uids...)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, driver.Errorf(driver.ErrRetry, "sample the usage: %w", err)
	}
	return d.sampleMachines(ctx, pods)
}

// sampleMachines asks machines for their state and usage, and reports those whose state has changed to the
// watches.
func (d *Driver) sampleMachines(ctx context.Context, pods []*corev1.Pod) ([]driver.Usage, error) {
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

// sampleAll asks all machines when a watch begins, since another process may have paused them.
func (d *Driver) sampleAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.CallTimeout)
	defer cancel()
	pods, err := d.reader.KnownPods(ctx)
	if err == nil {
		_, err = d.sampleMachines(ctx, pods)
	}
	if err != nil && ctx.Err() == nil {
		d.Log.Info("Machines cannot be asked what they do", "cause", err.Error())
	}
}

// Probe implements driver.Prober. The machine reports whether its guest has answered, since QEMU accepts
// connections for a guest that does not listen.
func (d *Driver) Probe(ctx context.Context, uid types.UID, port int32) error {
	if err := driver.CheckUID(uid); err != nil {
		return err
	}
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	pods, err := d.reader.KnownPods(ctx, uid)
	if err != nil {
		return err
	}
	_, at, err := findRunning(uid, pods)
	if err == nil {
		err = d.machines.Probe(ctx, at, port)
	}
	if errors.Is(err, failure.ErrUnknown) {
		return driver.Errorf(driver.ErrInvalid, "tcpSocket.port is %d: it must be the port of one of spec.ports with protocol TCP, since nothing else leads to the guest", port)
	}
	return err
}

// findRunning returns the first pod whose machine runs, and how to reach the machine.
func findRunning(uid types.UID, pods []*corev1.Pod) (*corev1.Pod, machines.Machine, error) {
	for _, p := range pods {
		if at, ok := instance.MachineOf(p); ok {
			return p, at, nil
		}
	}
	return nil, machines.Machine{}, driver.Errorf(driver.ErrRetry, "the machine of UID %s does not run", uid)
}

// streaming is the driver where people reach guests through Drover, by the control ports of machines.
type streaming struct {
	*Driver
	guests.Guests
}

// newStreaming returns a driver that serves streams.
func newStreaming(d *Driver) streaming {
	s := streaming{Driver: d}
	s.Guests = guests.Guests{Reach: s.newGuestClient, Explain: explainGuest}
	return s
}

var (
	_ driver.Consoler        = streaming{}
	_ driver.LogReader       = streaming{}
	_ driver.Executor        = streaming{}
	_ driver.Dialer          = streaming{}
	_ driver.InterfaceLister = streaming{}
	_ driver.NetworkReporter = streaming{}
)

// explainGuest returns what an error of a guest means in a cluster, nil for an error that means the same
// elsewhere.
func explainGuest(err error) error {
	switch {
	case errors.Is(err, failure.ErrIdentity):
		return driver.Errorf(driver.ErrUnsupported, "%w: restart the VM if its pod was made before drover-controller had --pod-streams", err)
	case errors.Is(err, failure.ErrUnreachable) && !errors.Is(err, context.Canceled):
		return driver.Errorf(driver.ErrRetry, "%w: if that lasts, a NetworkPolicy may keep drover-controller from port %s of the pod", err, objects.ControlPortName)
	}
	return nil
}

// findPods returns the pods of a server that exists. It may have none.
func (d streaming) findPods(ctx context.Context, uid types.UID) ([]*corev1.Pod, error) {
	if err := driver.CheckUID(uid); err != nil {
		return nil, err
	}
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	pods, err := d.reader.KnownPods(ctx, uid)
	if err != nil || len(pods) > 0 {
		return pods, err
	}
	servers, err := d.List(ctx, uid)
	if err == nil && len(servers) == 0 {
		err = driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", uid)
	}
	return nil, err
}

// findRunning returns the pod of a server whose machine runs, and how to reach the machine.
func (d streaming) findRunning(ctx context.Context, uid types.UID) (*corev1.Pod, machines.Machine, error) {
	pods, err := d.findPods(ctx, uid)
	if err != nil {
		return nil, machines.Machine{}, err
	}
	return findRunning(uid, pods)
}

// newGuestClient returns a client of the guest of a server that runs.
func (d streaming) newGuestClient(ctx context.Context, uid types.UID) (*control.Client, error) {
	_, at, err := d.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	return d.machines.Guest(ctx, at)
}

// Logs implements driver.LogReader. The kubelet has the output of the server's pod.
func (d streaming) Logs(ctx context.Context, uid types.UID, o driver.LogOptions) (io.ReadCloser, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	pods, err := d.findPods(ctx, uid)
	switch {
	case err != nil:
		return nil, err
	case len(pods) == 0:
		return nil, driver.Errorf(driver.ErrRetry, "the server of UID %s does not have a pod, and the log of the last one went with it", uid)
	case o.Previous:
		return nil, driver.Errorf(driver.ErrRetry, "no earlier run is known: the log of a run goes with its pod")
	}
	p := pods[0]
	log, err := d.Client.Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: objects.ContainerName, Follow: o.Follow, TailLines: o.TailLines}).Stream(ctx)
	if apierrors.IsBadRequest(err) {
		return nil, driver.Errorf(driver.ErrRetry, "nothing was printed yet: %w", err)
	}
	if err != nil {
		return nil, objects.Explain("read the log of", objects.KindPod, types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, err)
	}
	return log, nil
}

// Dial implements driver.Dialer. It connects to the address of the pod.
func (d streaming) Dial(ctx context.Context, uid types.UID, port int32) (net.Conn, error) {
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	p, _, err := d.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	if !objects.LeadsToGuest(p, port) {
		return nil, driver.Errorf(driver.ErrInvalid, "port is %d: it must be the port of one of spec.ports with protocol TCP, since nothing else leads to the guest", port)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(port))))
	if err != nil {
		return nil, driver.Errorf(driver.ErrRetry, "connect to port %d of the pod %s: %w", port, p.Name, err)
	}
	return conn, nil
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
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
)

// streaming is the driver where people reach guests through Drover, by the control ports of their
// machines.
type streaming struct {
	*Driver
	guests.Guests
}

func newStreaming(d *Driver) streaming {
	s := streaming{Driver: d}
	s.Guests = guests.Guests{Reach: s.reach, Explain: explainGuest}
	return s
}

var (
	_ driver.Consoler        = streaming{}
	_ driver.LogReader       = streaming{}
	_ driver.Executor        = streaming{}
	_ driver.Dialer          = streaming{}
	_ driver.InterfaceLister = streaming{}
)

// explainGuest returns what an error of a guest means in a cluster, nil for one that means the same elsewhere.
func explainGuest(err error) error {
	switch {
	case errors.Is(err, control.ErrIdentity):
		return driver.Errorf(driver.ErrUnsupported, "%w: restart the VM if its pod was made before drover-controller had --pod-streams", err)
	case errors.Is(err, control.ErrUnreachable) && !errors.Is(err, context.Canceled):
		return driver.Errorf(driver.ErrRetry, "%w: if that lasts, a NetworkPolicy may keep drover-controller from port %s of the pod", err, objects.ControlPortName)
	}
	return nil
}

// findPods returns the pods of a server. There may be none.
func (d streaming) findPods(ctx context.Context, uid types.UID) ([]*corev1.Pod, error) {
	if err := driver.CheckUID(uid); err != nil {
		return nil, err
	}
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	pods, err := d.knownPods(ctx, uid)
	if err != nil || len(pods) > 0 {
		return pods, err
	}
	servers, err := d.List(ctx, uid)
	if err == nil && len(servers) == 0 {
		err = driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", uid)
	}
	return nil, err
}

// findRunning returns the pod of a server whose machine runs.
func (d streaming) findRunning(ctx context.Context, uid types.UID) (*corev1.Pod, machines.Machine, error) {
	pods, err := d.findPods(ctx, uid)
	if err != nil {
		return nil, machines.Machine{}, err
	}
	for _, p := range pods {
		if at, ok := instance.MachineOf(p); ok {
			return p, at, nil
		}
	}
	return nil, machines.Machine{}, driver.Errorf(driver.ErrRetry, "the machine of UID %s does not run", uid)
}

// reach returns a client of the guest of a server that runs.
func (d streaming) reach(ctx context.Context, uid types.UID) (*control.Client, error) {
	_, at, err := d.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	return d.machines.Guest(ctx, at)
}

// Logs implements driver.LogReader, by what the kubelet has of the output of the server's pod.
func (d streaming) Logs(ctx context.Context, uid types.UID, o driver.LogOptions) (io.ReadCloser, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	pods, err := d.findPods(ctx, uid)
	switch {
	case err != nil:
		return nil, err
	case len(pods) == 0:
		return nil, driver.Errorf(driver.ErrRetry, "the server of UID %s has no pod, and the log of the last one went with it", uid)
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

// Dial implements driver.Dialer, by the address of the pod.
func (d streaming) Dial(ctx context.Context, uid types.UID, port int32) (net.Conn, error) {
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	p, _, err := d.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	forwards := func(c corev1.ContainerPort) bool { return c.ContainerPort == port && c.Protocol != corev1.ProtocolUDP }
	if at, ok := objects.ControlPortOf(p); !slices.ContainsFunc(p.Spec.Containers[0].Ports, forwards) || ok && at == port {
		return nil, driver.Errorf(driver.ErrInvalid, "port is %d: it must be the port of one of spec.ports with protocol TCP, since nothing else leads to the guest", port)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(port))))
	if err != nil {
		return nil, driver.Errorf(driver.ErrRetry, "connect to port %d of the pod %s: %w", port, p.Name, err)
	}
	return conn, nil
}

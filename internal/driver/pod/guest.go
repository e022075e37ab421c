// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/machines"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/agent"
	"cloudnative.tw/drover/internal/machine/control"
)

// streaming is the driver where people reach guests through Drover, by the control ports of their
// machines.
type streaming struct{ *Driver }

var (
	_ driver.Consoler        = streaming{}
	_ driver.LogReader       = streaming{}
	_ driver.Executor        = streaming{}
	_ driver.Dialer          = streaming{}
	_ driver.InterfaceLister = streaming{}
)

// guestErrors are the kinds of the contract for what fails with a guest. One that is missing here,
// ErrEndUnknown, has no kind: the command may have been started.
var guestErrors = []struct{ from, kind error }{
	{control.ErrTaken, driver.ErrConsoleTaken},
	{control.ErrCommandNotFound, driver.ErrCommandNotFound},
	{control.ErrCommandNotExecutable, driver.ErrCommandNotExecutable},
	{control.ErrCommand, driver.ErrInvalid},
	{control.ErrInputOpen, driver.ErrInvalid},
	{control.ErrInputLong, driver.ErrInvalid},
	{control.ErrNoAgent, driver.ErrUnsupported},
	{control.ErrDisabled, driver.ErrUnsupported},
	{control.ErrOutputCut, driver.ErrUnsupported},
	{control.ErrInputs, driver.ErrRetry},
	{control.ErrBusy, driver.ErrRetry},
	{control.ErrSilent, driver.ErrRetry},
	{control.ErrPaused, driver.ErrRetry},
	{control.ErrNotRunning, driver.ErrRetry},
	{control.ErrFailed, driver.ErrRetry},
	{control.ErrProtocol, driver.ErrRetry},
}

// classify gives an error of a guest its kind in the contract.
func classify(err error) error {
	switch {
	case errors.Is(err, control.ErrIdentity):
		return driver.Errorf(driver.ErrUnsupported, "%w: restart the VM if its pod was made before drover-controller had --pod-streams", err)
	case errors.Is(err, control.ErrUnreachable) && !errors.Is(err, context.Canceled):
		return driver.Errorf(driver.ErrRetry, "%w: if that lasts, a NetworkPolicy may keep drover-controller from port %s of the pod", err, objects.ControlPortName)
	}
	for _, e := range guestErrors {
		if errors.Is(err, e.from) {
			return driver.Errorf(e.kind, "%w", err)
		}
	}
	return err
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

// Console implements driver.Consoler.
func (d streaming) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	attach := func(types bool) (io.ReadWriteCloser, error) {
		c, err := d.reach(ctx, uid)
		if err != nil {
			return nil, err
		}
		s, err := c.Console(ctx, types)
		return s, classify(err)
	}
	reads, err := attach(false)
	if err != nil {
		return nil, err
	}
	return &console{ReadWriteCloser: reads, attach: attach}, nil
}

// console is an attached console, which has a second stream once its user has typed.
type console struct {
	io.ReadWriteCloser

	attach func(types bool) (io.ReadWriteCloser, error)

	mu       sync.Mutex
	typist   *typist
	isClosed bool
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	to, err := c.openTypist()
	if err != nil {
		return 0, err
	}
	n, err := to.Write(p)
	return n, classify(err)
}

func (c *console) openTypist() (*typist, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil, net.ErrClosed
	}
	if c.typist == nil {
		types, err := c.attach(true)
		if err != nil {
			return nil, err
		}
		c.typist = newTypist(types)
	}
	return c.typist, nil
}

// Close implements io.Closer.
func (c *console) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil
	}
	c.isClosed = true
	err := c.ReadWriteCloser.Close()
	if c.typist != nil {
		err = errors.Join(err, c.typist.Close())
	}
	return err
}

// leaveWithin is how long a machine may take to let another caller type.
const leaveWithin = 2 * time.Second

// typist is a stream by which one caller types.
type typist struct {
	io.ReadWriteCloser

	ended chan struct{}
}

func newTypist(types io.ReadWriteCloser) *typist {
	t := &typist{types, make(chan struct{})}
	go func() {
		defer close(t.ended)
		_, _ = io.Copy(io.Discard, types) // what the guest prints comes here too
	}()
	return t
}

// Close implements io.Closer. Another caller may type once it returns, unless the guest does not read
// what was typed.
func (t *typist) Close() error {
	if half, ok := t.ReadWriteCloser.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		select {
		case <-t.ended:
		case <-time.After(leaveWithin):
		}
	}
	return t.ReadWriteCloser.Close()
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

// Exec implements driver.Executor, by the guest's agent.
func (d streaming) Exec(ctx context.Context, uid types.UID, r driver.ExecRequest) (exitCode int, err error) {
	if r.TTY {
		return 0, driver.Errorf(driver.ErrUnsupported, "tty: a command in a machine has no terminal, because the guest agent gives it none: leave it out, or use ssh or the console")
	}
	if err := (agent.Command{Args: r.Command}).Check(); err != nil {
		return 0, driver.Errorf(driver.ErrInvalid, "%w", err)
	}
	c, err := d.reach(ctx, uid)
	if err != nil {
		return 0, err
	}
	command := control.Command{Args: r.Command, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr}
	for _, to := range []*io.Writer{&command.Stdout, &command.Stderr} {
		if *to == nil {
			*to = io.Discard
		}
	}
	code, err := c.Exec(ctx, command)
	if errors.Is(err, control.ErrOutputCut) {
		err = fmt.Errorf("%w; the exit code is %d", err, code)
	}
	return code, classify(err)
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

// Interfaces implements driver.InterfaceLister, by the guest's agent.
func (d streaming) Interfaces(ctx context.Context, uid types.UID) ([]driver.Interface, error) {
	c, err := d.reach(ctx, uid)
	if err != nil {
		return nil, err
	}
	reported, err := c.Interfaces(ctx)
	if err != nil {
		return nil, classify(err)
	}
	found := make([]driver.Interface, len(reported))
	for n, i := range reported {
		found[n] = driver.Interface(i)
	}
	return found, nil
}

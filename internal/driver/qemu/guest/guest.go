// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest gives access to the guests in the machines of the qemu driver: to consoles, logs,
// commands, ports and network interfaces. It neither changes nor locks servers.
//
// Start with Guests.
package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"net"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/guests"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/containerboot"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/mounts"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/terminal"
)

// Guests are the guests of the machines of a host.
type Guests struct {
	guests.Guests

	host *instance.Host
}

// New returns the guests of a host.
func New(host *instance.Host) *Guests {
	g := &Guests{host: host}
	g.Reach = g.clientOf
	return g
}

// clientOf returns a client of the supervisor of a running server.
func (g *Guests) clientOf(ctx context.Context, uid types.UID) (*control.Client, error) {
	inst, err := g.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	return inst.Supervisor().Reach(ctx)
}

// Logs implements driver.LogReader. The log of a container image has the output of one run. The log of a serial console
// has the output of all runs.
func (g *Guests) Logs(ctx context.Context, uid types.UID, o driver.LogOptions) (io.ReadCloser, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	inst, err := g.findServer(ctx, uid, (*instance.Instance).Load)
	if err != nil {
		return nil, err
	}
	if inst.Guest != nil && inst.Guest.Output != nil {
		return g.openOutput(ctx, inst, o)
	}
	log, err := inst.Machine.OpenLog(ctx, machine.LogOptions{Follow: o.Follow, Previous: o.Previous, TailLines: o.TailLines})
	return log, classifyError(ctx, err)
}

// findServer reads a server of this cluster with the function read.
func (g *Guests) findServer(ctx context.Context, uid types.UID, read func(*instance.Instance) (*instance.Instance, error)) (*instance.Instance, error) {
	if err := kit.CheckContext(ctx); err != nil {
		return nil, err
	}
	if err := record.CheckUID(uid); err != nil {
		return nil, err
	}
	if err := g.host.StateDir.Reach(); err != nil {
		return nil, err
	}
	inst, err := read(g.host.InstanceOf(uid))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && (inst.ClusterID != g.host.ClusterID || inst.Retained):
		return nil, driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", uid)
	case err != nil:
		return nil, instance.ClassifyObserveError(err)
	}
	return inst, nil
}

// findRunning returns a server whose guest runs or is paused.
func (g *Guests) findRunning(ctx context.Context, uid types.UID) (*instance.Instance, error) {
	inst, err := g.findServer(ctx, uid, func(inst *instance.Instance) (*instance.Instance, error) { return inst.Observe(ctx) })
	if err == nil && !inst.IsAlive() {
		err = driver.Errorf(driver.ErrRetry, "the server %s does not run", uid)
	}
	return inst, err
}

// Probe implements driver.Prober. The machine's supervisor makes the connection, since it is the guest's gateway.
func (g *Guests) Probe(ctx context.Context, uid types.UID, port int32) error {
	c, err := g.clientForPort(ctx, uid, port)
	if err != nil {
		return err
	}
	return explainPortError(ctx, port, c.Probe(ctx, port))
}

// clientForPort checks a port, and returns a client of the server's supervisor.
func (g *Guests) clientForPort(ctx context.Context, uid types.UID, port int32) (*control.Client, error) {
	if port < 1 || port > math.MaxUint16 {
		return nil, driver.Errorf(driver.ErrInvalid, "port is %d: it must be from 1 to %d", port, math.MaxUint16)
	}
	return g.clientOf(ctx, uid)
}

// explainPortError names the port at which the guest did not accept a connection before ctx ended, or refused it.
func explainPortError(ctx context.Context, port int32, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return driver.Errorf(driver.ErrRetry, "port %d of the guest took no connection: %w", port, ctx.Err())
	}
	return driver.Errorf(driver.ErrRetry, "port %d of the guest: %w", port, err)
}

// FileRevisions implements driver.FileWriter.
func (g *Guests) FileRevisions(ctx context.Context, uid types.UID) (revisions map[string]string, err error) {
	text, err := g.execMounts(ctx, uid, nil)
	if err == nil && json.Unmarshal(text, &revisions) != nil {
		err = driver.Errorf(driver.ErrRetry, "the guest's agent gives an invalid answer")
	}
	return revisions, err
}

// WriteFiles implements driver.FileWriter.
func (g *Guests) WriteFiles(ctx context.Context, uid types.UID, mount driver.FileMount) error {
	content, err := json.Marshal(containerboot.ContentOf(mount))
	if err == nil {
		_, err = g.execMounts(ctx, uid, bytes.NewReader(content))
	}
	return err
}

// maxAnswer bounds the answer of a guest to mounts.Command.
const maxAnswer = 64 << 10

// execMounts runs mounts.Command, and returns its output.
func (g *Guests) execMounts(ctx context.Context, uid types.UID, input io.Reader) ([]byte, error) {
	var output, message boundedBuffer
	code, err := g.Exec(ctx, uid, terminal.Command{Args: []string{mounts.Command}, Stdin: input, Stdout: &output, Stderr: &message})
	if err == nil && code != 0 {
		err = driver.Errorf(driver.ErrRetry, "%s", config.Printable(message.String(), config.MaxMessage))
	}
	return output.Bytes(), err
}

// boundedBuffer takes at most maxAnswer bytes.
type boundedBuffer struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxAnswer {
		return 0, driver.Errorf(driver.ErrRetry, "the answer of the guest's agent has more than %d bytes", maxAnswer)
	}
	return b.Buffer.Write(p)
}

// Dial implements driver.Dialer. Like Probe it connects through the supervisor.
func (g *Guests) Dial(ctx context.Context, uid types.UID, port int32) (net.Conn, error) {
	c, err := g.clientForPort(ctx, uid, port)
	if err != nil {
		return nil, err
	}
	conn, err := c.DialGuest(ctx, uint16(port)) //nolint:gosec // a port
	if err != nil {
		return nil, explainPortError(ctx, port, err)
	}
	return conn, nil
}

// classifyError gives an error the kind of ContractError, or else ErrRetry, since the call has changed nothing.
func classifyError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if kind := instance.ContractError(err); kind != err { //nolint:errorlint // unchanged
		return kind
	}
	return driver.Errorf(driver.ErrRetry, "%w", err)
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/machine/agent"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/qmp"
)

const (
	// CommandWithin bounds one exchange with a QEMU.
	CommandWithin = 5 * time.Second
	// QuitWithin is how long QEMU may take to end by itself before it is killed.
	QuitWithin = 2 * time.Second
	// PressEvery is the interval between two presses of the power button, for a guest that
	// was not ready for the first.
	PressEvery = 2 * time.Second
	// ResumeAgain is the minimum time between two resumes of a guest that its disk pauses
	// again. A disk that takes a while to fail must not have the guest resumed in a loop.
	ResumeAgain = 10 * time.Second
)

// Run states of QEMU that callers handle.
const (
	StatusPrelaunch = "prelaunch"
	StatusPaused    = "paused"
	StatusIOError   = "io-error"
	StatusShutdown  = "shutdown"
	StatusPanicked  = "guest-panicked"
	StatusInternal  = "internal-error"
)

// Reasons why a run has ended.
const (
	EndCompleted     = "Completed"
	EndPanicked      = "GuestPanicked"
	EndInternalError = "InternalError"
	// EndKilled : QEMU ended without reporting why.
	EndKilled = "Killed"
	// EndForced : the guest did not shut down in time, and QEMU was ended.
	EndForced = "Forced"
)

// endsByStatus are the run states that a guest does not come back from.
var endsByStatus = map[string]string{
	StatusShutdown: EndCompleted, StatusPanicked: EndPanicked, StatusInternal: EndInternalError,
}

// EndOf returns why the run has ended of a guest in a run state, if it has.
func EndOf(status string) (reason string, ended bool) {
	reason, ended = endsByStatus[status]
	return reason, ended
}

// stateEvents are the events of QEMU after which its run state may be another.
var stateEvents = map[string]bool{
	"STOP": true, "RESUME": true, "RESET": true, "SHUTDOWN": true, "GUEST_PANICKED": true, "BLOCK_IO_ERROR": true,
}

// ChangesState reports whether QEMU's run state may be another after an event.
func ChangesState(event qmp.Event) bool { return stateEvents[event.Name] }

// Status returns QEMU's run state.
func (m Machine) Status(ctx context.Context) (status string, err error) {
	err = m.Control(ctx, func(ctx context.Context, c *qmp.Client) error {
		status, err = QueryStatus(ctx, c)
		return err
	})
	return status, err
}

// QueryStatus returns QEMU's run state over a connection.
func QueryStatus(ctx context.Context, c *qmp.Client) (string, error) {
	var answer struct {
		Status string `json:"status"`
	}
	err := c.Execute(ctx, "query-status", nil, &answer)
	return answer.Status, err
}

// PowerDown presses the power button. A paused guest is resumed, since it would not notice
// the button.
func PowerDown(ctx context.Context, c *qmp.Client, isPaused bool) error {
	if isPaused {
		if err := c.Execute(ctx, "cont", nil, nil); err != nil {
			return err
		}
	}
	return c.Execute(ctx, "system_powerdown", nil, nil)
}

// Quit ends QEMU: by its quit command, so that its disks are consistent, or else by force.
func (m Machine) Quit(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, QuitWithin)
	defer cancel()
	err := m.Execute(bounded, "quit", nil, nil)
	if _, refused := errors.AsType[*qmp.Error](err); !refused && m.WaitStopped(bounded, QuitWithin) == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return m.Kill(ctx)
}

// Execute executes one command by QEMU's control socket.
func (m Machine) Execute(ctx context.Context, command string, arguments, result any) error {
	// Not within the function: a call in one that is inlined itself would leave a trace.
	point := crashpoint.Begin("QMP "+command, m.UUID)
	err := m.Control(ctx, func(ctx context.Context, c *qmp.Client) error {
		return point.Inject(func(ctx context.Context) error { return c.Execute(ctx, command, arguments, result) })(ctx)
	})
	point.End()
	return err
}

// Control talks to QEMU by its control socket.
func (m Machine) Control(ctx context.Context, talk func(context.Context, *qmp.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, CommandWithin)
	defer cancel()
	c, err := m.Dial(ctx, ControlSocket, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	return talk(ctx, c)
}

// Dial connects to a QMP socket in the directory.
func (m Machine) Dial(ctx context.Context, socket string, onEvent func(qmp.Event)) (c *qmp.Client, err error) {
	err = m.atSocket(socket, func(path string) error {
		c, err = qmp.Dial(ctx, path, onEvent)
		return err
	})
	return c, err
}

// DialSerial connects to the serial console. QEMU serves one connection at a time, and
// blocks the guest if what it prints is not read.
func (m Machine) DialSerial(ctx context.Context) (net.Conn, error) {
	return m.dialSocket(ctx, SerialSocket)
}

func (m Machine) dialSocket(ctx context.Context, socket string) (conn net.Conn, err error) {
	err = m.atSocket(socket, func(path string) error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
		return err
	})
	return conn, err
}

// Agent returns the agent of the guest, which may have none.
func (m Machine) Agent(c clock.Clock) agent.Agent {
	return agent.Agent{Connect: m.connectAgent, Clock: c}
}

// SetGuestClock sets the guest's clock to the host's after a pause, in which it stood still.
// Without an agent, or one that may not do that, the guest's own time service has to.
func (m Machine) SetGuestClock(ctx context.Context, c clock.Clock) error {
	err := m.Agent(c).SetTime(ctx)
	if errors.Is(err, agent.ErrNoAgent) || errors.Is(err, agent.ErrDisabled) {
		return nil
	}
	return err
}

const (
	// agentFreeWithin is how long a client waits for the agent while others talk to it, which is
	// longer than one of them waits for an agent that is silent. An answer that goes on may take
	// another client longer than that: then this one fails with ErrBusy, and may try again.
	agentFreeWithin = 15 * time.Second
	// agentFreeEvery is the interval between two looks whether the agent is free.
	agentFreeEvery = 20 * time.Millisecond
)

// connectAgent connects to the guest's agent. QEMU would make a second client wait unseen
// until the first one has left.
func (m Machine) connectAgent(ctx context.Context) (net.Conn, error) {
	if err := m.checkAgent(ctx); err != nil {
		return nil, err
	}
	unlock, err := m.claimAgent(ctx)
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, CommandWithin)
	defer cancel()
	conn, err := m.dialSocket(bounded, AgentSocket)
	if err != nil {
		unlock()
		return nil, err
	}
	return agentConn{conn, unlock}, nil
}

// checkAgent finds out whether a program in the guest has opened the device.
func (m Machine) checkAgent(ctx context.Context) error {
	var devices []struct {
		Label  string `json:"label"`
		IsOpen bool   `json:"frontend-open"`
	}
	if err := m.Control(ctx, func(ctx context.Context, c *qmp.Client) error {
		return c.Execute(ctx, "query-chardev", nil, &devices)
	}); err != nil {
		return err
	}
	for _, d := range devices {
		if d.Label == launch.AgentChardev && d.IsOpen {
			return nil
		}
	}
	return agent.ErrNoAgent
}

// claimAgent waits until no other client talks to the agent.
func (m Machine) claimAgent(ctx context.Context) (unlock func(), err error) {
	bounded, cancel := context.WithTimeout(ctx, agentFreeWithin)
	defer cancel()
	for {
		unlock, err = tryLock(m.File(agentLock), os.O_CREATE)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return unlock, err
		}
		if !proc.Pause(bounded, agentFreeEvery) {
			return nil, cmp.Or(ctx.Err(), agent.ErrBusy)
		}
	}
}

// agentConn is a connection to the agent, and the right to have it.
type agentConn struct {
	net.Conn
	unlock func()
}

// Close implements net.Conn. It is called once.
func (c agentConn) Close() error {
	defer c.unlock()
	return c.Conn.Close()
}

// atSocket passes connect the path of a socket by way of the directory's descriptor, so
// that the length of the directory's path does not matter.
func (m Machine) atSocket(socket string, connect func(path string) error) error {
	dir, err := os.Open(m.Path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := connect(filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), socket)); err != nil {
		return fmt.Errorf("%s: %w", m.File(socket), err)
	}
	return nil
}

// DiskSizes returns the sizes of disks as QEMU has them, by its name for them.
func (m Machine) DiskSizes(ctx context.Context) (map[string]int64, error) {
	var nodes []struct {
		Name  string `json:"node-name"`
		Image struct {
			Size int64 `json:"virtual-size"`
		} `json:"image"`
	}
	if err := m.Execute(ctx, "query-named-block-nodes", launch.Object{"flat": true}, &nodes); err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, n := range nodes {
		sizes[n.Name] = n.Image.Size
	}
	return sizes, nil
}

// ResizeDisk sets the size of a disk, a whole number of sectors. QEMU would cut off the
// end of one that is larger.
func (m Machine) ResizeDisk(ctx context.Context, node string, size int64) error {
	return m.Execute(ctx, "block_resize", launch.Object{"node-name": node, "size": size}, nil)
}

const (
	// balloonStale is the age from which on statistics mean that the guest has no driver any
	// more, as after a reset into another system.
	balloonStale = 6 * launch.BalloonInterval
	balloonPath  = "/machine/peripheral/balloon"
)

// balloonStats are what the guest reported last. A number that it did not report has all
// bits set.
type balloonStats struct {
	LastUpdate int64 `json:"last-update"` // in seconds since 1970, 0 for never
	Stats      struct {
		Total     uint64 `json:"stat-total-memory"`
		Free      uint64 `json:"stat-free-memory"`
		Available uint64 `json:"stat-available-memory"`
	} `json:"stats"`
}

// GuestMemory returns what the guest uses of its memory by its own account: all that its
// programs could not have. A guest without the driver does not report it, and neither does
// a machine that was started without the device.
func (m Machine) GuestMemory(ctx context.Context, now time.Time, isPaused bool) (used int64, ok bool) {
	var stats balloonStats
	if err := m.Execute(ctx, "qom-get", launch.Object{"path": balloonPath, "property": "guest-stats"}, &stats); err != nil {
		return 0, false
	}
	// A paused guest reports nothing new.
	if now.Sub(time.Unix(stats.LastUpdate, 0)) > balloonStale && !isPaused {
		return 0, false
	}
	return stats.usedMemory()
}

func (b balloonStats) usedMemory() (used int64, ok bool) {
	const notReported = math.MaxUint64
	rest := b.Stats.Available
	if rest == notReported { // Linux before 4.6
		rest = b.Stats.Free
	}
	if b.LastUpdate == 0 || b.Stats.Total == notReported || rest > b.Stats.Total {
		return 0, false
	}
	return int64(b.Stats.Total - rest), true //nolint:gosec // less than a machine's memory
}

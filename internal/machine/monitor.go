// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/qmp"
)

const (
	// CommandWithin bounds one exchange with a QEMU.
	CommandWithin = 5 * time.Second
	// QuitWithin is how long QEMU may take to end after the command quit before it is killed.
	QuitWithin = 2 * time.Second
	// PressEvery is the interval between two presses of the power button, since a guest that
	// still boots may miss the first.
	PressEvery = 2 * time.Second
	// ResumeAgain is the minimum time between two resumes of a guest whose disk fails again. A
	// guest must not be resumed in a loop while each of its requests takes a while to fail.
	ResumeAgain = 2 * time.Second
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
	// EndKilled means that QEMU ended without reporting why.
	EndKilled = "Killed"
	// EndForced means that the guest did not shut down in time, and QEMU was ended.
	EndForced = "Forced"
)

// endsByStatus are the reasons for an end, by the run state that shows it.
var endsByStatus = map[string]string{
	StatusShutdown: EndCompleted, StatusPanicked: EndPanicked, StatusInternal: EndInternalError,
}

// EndOf returns why a run has ended, if QEMU's run state shows that it has.
func EndOf(status string) (reason string, ended bool) {
	reason, ended = endsByStatus[status]
	return reason, ended
}

// stateEvents are the events of QEMU after which its run state may have changed.
var stateEvents = map[string]bool{
	"STOP": true, "RESUME": true, "RESET": true, "SHUTDOWN": true, "GUEST_PANICKED": true, "BLOCK_IO_ERROR": true,
}

// ChangesState reports whether QEMU's run state may have changed with an event.
func ChangesState(event qmp.Event) bool { return stateEvents[event.Name] }

// Executor executes commands of QEMU's monitor.
type Executor interface {
	Execute(ctx context.Context, command string, arguments, result any) error
}

// Monitor queries and changes a QEMU through QMP.
type Monitor struct{ Executor }

// Status returns QEMU's run state.
func (q Monitor) Status(ctx context.Context) (string, error) {
	var answer struct {
		Status string `json:"status"`
	}
	err := q.Execute(ctx, "query-status", nil, &answer)
	return answer.Status, err
}

// Status returns QEMU's run state.
func (m Machine) Status(ctx context.Context) (status string, err error) {
	err = m.Control(ctx, func(ctx context.Context, c *qmp.Client) error {
		status, err = Monitor{c}.Status(ctx)
		return err
	})
	return status, err
}

// PowerDown presses the power button. A paused guest is resumed first, since it would not
// notice the button.
func (q Monitor) PowerDown(ctx context.Context, isPaused bool) error {
	if isPaused {
		if err := q.Execute(ctx, "cont", nil, nil); err != nil {
			return err
		}
	}
	return q.Execute(ctx, "system_powerdown", nil, nil)
}

// Quit ends QEMU with the command quit, which keeps disks consistent. It kills QEMU if that fails.
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

// Execute executes one QMP command over the control socket.
func (m Machine) Execute(ctx context.Context, command string, arguments, result any) error {
	// Not in the closure: inlined there, the call would leave a trace in builds without crash points.
	point := crashpoint.Begin("QMP "+command, m.Mark)
	err := m.Control(ctx, func(ctx context.Context, c *qmp.Client) error {
		return point.Inject(func(ctx context.Context) error { return c.Execute(ctx, command, arguments, result) })(ctx)
	})
	point.End()
	return err
}

// Control calls talk with a QMP client that is connected to the control socket.
func (m Machine) Control(ctx context.Context, talk func(context.Context, *qmp.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, CommandWithin)
	defer cancel()
	var c *qmp.Client
	if err := m.withSocketPath(ControlSocket, func(path string) (err error) {
		c, err = qmp.Dial(ctx, path, nil)
		return err
	}); err != nil {
		return err
	}
	defer c.Close()
	return talk(ctx, c)
}

// DialSocket connects to a socket in the directory.
func (m Machine) DialSocket(ctx context.Context, socket string) (conn net.Conn, err error) {
	err = m.withSocketPath(socket, func(path string) error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
		return err
	})
	return conn, err
}

// CheckAgent fails with failure.ErrNoAgent unless a program in the guest has opened the agent's device.
func (q Monitor) CheckAgent(ctx context.Context) error {
	var devices []struct {
		Label  string `json:"label"`
		IsOpen bool   `json:"frontend-open"`
	}
	if err := q.Execute(ctx, "query-chardev", nil, &devices); err != nil {
		return err
	}
	for _, d := range devices {
		if d.Label == launch.AgentChardev && d.IsOpen {
			return nil
		}
	}
	return failure.ErrNoAgent
}

// withSocketPath calls use with the path of a socket. The path goes through the directory's
// descriptor, since socket addresses are at most 107 bytes long.
func (m Machine) withSocketPath(socket string, use func(path string) error) error {
	dir, err := os.Open(m.Path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := use(filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), socket)); err != nil {
		return fmt.Errorf("%s: %w", m.File(socket), err)
	}
	return nil
}

// DiskSizes returns the sizes that QEMU reports for its disks, by node name.
func (q Monitor) DiskSizes(ctx context.Context) (map[string]int64, error) {
	var nodes []struct {
		Name  string `json:"node-name"`
		Image struct {
			Size int64 `json:"virtual-size"`
		} `json:"image"`
	}
	if err := q.Execute(ctx, "query-named-block-nodes", launch.Object{"flat": true}, &nodes); err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, n := range nodes {
		sizes[n.Name] = n.Image.Size
	}
	return sizes, nil
}

// ResizeDisk sets the size of a disk, a whole number of sectors. A smaller size than the
// present one would cut off the end of the disk.
func (q Monitor) ResizeDisk(ctx context.Context, node string, size int64) error {
	return q.Execute(ctx, "block_resize", launch.Object{"node-name": node, "size": size}, nil)
}

const (
	// balloonStale is the age at which statistics show that the guest no longer has the driver,
	// such as after a reset into another system.
	balloonStale = 6 * launch.BalloonInterval
	balloonPath  = "/machine/peripheral/balloon"
)

// balloonStats is the last report of the guest's balloon driver. Numbers that the driver did not
// report have all bits set.
type balloonStats struct {
	LastUpdate int64 `json:"last-update"` // in seconds since 1970, 0 for never
	Stats      struct {
		Total     uint64 `json:"stat-total-memory"`
		Free      uint64 `json:"stat-free-memory"`
		Available uint64 `json:"stat-available-memory"`
	} `json:"stats"`
}

// GuestMemory returns how much memory the guest uses by its report: the memory that is not
// available to its programs. ok is false if the guest lacks the balloon driver, or the machine
// the device.
func (q Monitor) GuestMemory(ctx context.Context, now time.Time, isPaused bool) (used int64, ok bool) {
	var stats balloonStats
	if err := q.Execute(ctx, "qom-get", launch.Object{"path": balloonPath, "property": "guest-stats"}, &stats); err != nil {
		return 0, false
	}
	// The statistics of a paused guest are old, but still true.
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

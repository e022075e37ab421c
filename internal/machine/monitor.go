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
	// QuitWithin is how long QEMU may take to end by itself before it is killed.
	QuitWithin = 2 * time.Second
	// PressEvery is the interval between two presses of the power button, for a guest that
	// was not ready for the first.
	PressEvery = 2 * time.Second
	// ResumeAgain is the minimum time between two resumes of a guest that its disk pauses
	// again. A disk that takes a while to fail must not have the guest resumed in a loop.
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

// Executor executes commands of QEMU's monitor.
type Executor interface {
	Execute(ctx context.Context, command string, arguments, result any) error
}

// Monitor asks a QEMU, and changes it, by its monitor.
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

// PowerDown presses the power button. A paused guest is resumed, since it would not notice
// the button.
func (q Monitor) PowerDown(ctx context.Context, isPaused bool) error {
	if isPaused {
		if err := q.Execute(ctx, "cont", nil, nil); err != nil {
			return err
		}
	}
	return q.Execute(ctx, "system_powerdown", nil, nil)
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
	var c *qmp.Client
	if err := m.atSocket(ControlSocket, func(path string) (err error) {
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
	err = m.atSocket(socket, func(path string) error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
		return err
	})
	return conn, err
}

// CheckAgent finds out whether a program in the guest has opened the agent's device.
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

// ResizeDisk sets the size of a disk, a whole number of sectors. QEMU would cut off the
// end of one that is larger.
func (q Monitor) ResizeDisk(ctx context.Context, node string, size int64) error {
	return q.Execute(ctx, "block_resize", launch.Object{"node-name": node, "size": size}, nil)
}

const (
	// balloonStale is the age from which on statistics mean that the guest has lost its driver,
	// as after a reset into another system.
	balloonStale = 6 * launch.BalloonInterval
	balloonPath  = "/machine/peripheral/balloon"
)

// balloonStats are the last report of the guest. A number that it did not report has all
// bits set.
type balloonStats struct {
	LastUpdate int64 `json:"last-update"` // in seconds since 1970, 0 for never
	Stats      struct {
		Total     uint64 `json:"stat-total-memory"`
		Free      uint64 `json:"stat-free-memory"`
		Available uint64 `json:"stat-available-memory"`
	} `json:"stats"`
}

// GuestMemory returns how much of its memory the guest reports to use: all that its
// programs could not have. A guest without the driver does not report it, and neither does
// a machine that was started without the device.
func (q Monitor) GuestMemory(ctx context.Context, now time.Time, isPaused bool) (used int64, ok bool) {
	var stats balloonStats
	if err := q.Execute(ctx, "qom-get", launch.Object{"path": balloonPath, "property": "guest-stats"}, &stats); err != nil {
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

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Driver runs servers on one engine. Every method is idempotent, takes its
// context first and is safe for concurrent use.
//
// A call blocks for one mutation, seconds at most, under the deadline of its
// context. What takes longer is split: a fetch (pull, download) runs in the
// background and never creates, starts or changes anything; its end goes to
// Watch, and the next Ensure acts on it. A stop only sends the signal; a later
// Ensure forces it once StopBy has passed.
//
// A server is looked up by its UID label or directory, never by name. A server
// of another cluster is neither listed nor touched.
type Driver interface {
	// Ensure creates, adopts or updates one server so that it matches spec,
	// power state included, and returns the server as it is then. It is
	// repeatable, even from two leaders at once: creation is atomic on the UID.
	//
	// While an image is fetched it returns a server in StatePending whose Progress
	// tells the progress. A server that waits for a stop is returned in
	// StateStopping. What can only change at a restart is named in Pending and
	// left as it is until the server is started or RestartRun asks for a restart.
	//
	// Errors: ErrInvalid or ErrUnsupported for a spec that cannot be honoured,
	// ErrRetry for a missing image, ErrExhausted, ErrUnavailable, ErrFenced. Any
	// other error may have left the mutation done: look before doing it again.
	Ensure(ctx context.Context, spec ServerSpec) (Server, error)

	// Delete removes the server and all that belongs to it, at once; or with
	// retain releases it: marked first, left running, no longer a server of its
	// UID, never swept. It cancels a fetch for the UID and joins it.
	//
	// ErrNotFound means that nothing is left, nil that removal is under way or
	// done: List tells which.
	Delete(ctx context.Context, t Target, retain bool) error

	// List reports this cluster's servers, all of them where no UID is named,
	// fetches under way (StatePending) included. It is complete or an error:
	// what a nil-error List misses is gone. Two servers of one UID are both
	// reported.
	List(ctx context.Context, uids ...types.UID) ([]Server, error)

	// Usage samples many servers in one call. Servers that do not run are
	// missing from the answer. No UID means no server.
	Usage(ctx context.Context, uids ...types.UID) ([]Usage, error)

	// Watch sends UIDs worth another look until ctx ends. It is opened before
	// List and loses events only by closing: a closed channel means open and
	// list again.
	Watch(ctx context.Context) (<-chan types.UID, error)
}

// Identifier tells which engine a driver talks to. Every driver has it; it is
// apart from Driver because only the inventory asks.
type Identifier interface {
	// EngineID is the engine's lasting identity: Docker's own id, a UUID file in
	// the fake driver's folder. At most 128 characters of [A-Za-z0-9:._-].
	EngineID(ctx context.Context) (string, error)
}

// Fetcher fetches for servers in the background (StatePending). It is optional.
type Fetcher interface {
	// Abandon ends what is fetched for a server that is not wanted any more, or was.
	// It changes no server.
	Abandon(ctx context.Context, uid types.UID) error
}

// Closer ends what a driver does in the background. It is optional.
type Closer interface {
	// Close cancels fetches and joins them. An error tells of one that did not
	// end before ctx did.
	Close(ctx context.Context) error
}

// Prober asks whether a server takes connections. It is for a driver under which
// a plain connection does not tell: what leads to the server from outside would
// answer in its place. It is optional.
type Prober interface {
	// Probe returns nil once a TCP port of the server, as the server itself
	// counts, has taken a connection. It waits for that until ctx ends.
	Probe(ctx context.Context, uid types.UID, port int32) error
}

// Consoler attaches to the consoles of servers. It is optional.
type Consoler interface {
	// Console attaches to a server's console until it is closed or ctx ends.
	//
	// Many may read at a time. Each first gets the end of what was printed
	// before, then what is printed from then on, and io.EOF once the server has
	// stopped. One that reads too slowly misses some.
	//
	// One may write at a time: who writes first keeps the right until Close, and
	// the Write of another fails with ErrConsoleTaken.
	//
	// Errors: ErrNotFound, and ErrRetry for a server that does not run.
	Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error)
}

// Target names a server and carries the right to act on it.
type Target struct {
	// UID of the VirtualMachine; it identifies the server everywhere.
	UID types.UID
	// ID is the engine's name for the server, where it is known. A driver
	// that gets one acts only on the server that has both.
	ID string
	// Epoch of the leader that acts. An engine that can compare refuses, with
	// ErrFenced, one below the highest that has acted for the cluster. Zero is
	// nobody's, for a person's tools while no leader runs, and not compared.
	Epoch uint64
}

// ServerSpec is the server that is wanted.
type ServerSpec struct {
	Target
	// Namespace and Name of the VirtualMachine.
	Namespace, Name string
	// Power that the server should have.
	Power Power
	// StopBy is when a stop that is under way is forced; the zero time means
	// never.
	StopBy time.Time
	// GracePeriod is how long the guest has to shut down when the host does, which
	// no caller is there for. Every other stop has StopBy.
	GracePeriod time.Duration
	// RestartRun names a run (Server.Run) to end before the server is started: a
	// restart, once. It means nothing when that run is over.
	RestartRun string
	// PowerOnly is set where the caller could not read all of the spec, as with a
	// Secret that is gone: the server's Power counts, and Pending is not told.
	PowerOnly bool

	// CPUMilli is in thousandths of a CPU, the sizes are in bytes. A
	// RootDiskBytes of zero leaves the size to the driver.
	CPUMilli, MemoryBytes, RootDiskBytes int64
	Image                                Image
	Volumes                              []Volume
	Ports                                []Port
	SSHKeys                              []string
	RestartPolicy                        RestartPolicy
	UserData, NetworkData                Secret
}

// Power is a power state that a server should have.
type Power string

// The power states.
const (
	PowerOn     Power = "On"
	PowerOff    Power = "Off"
	PowerPaused Power = "Paused"
)

// CheckPower refuses, with ErrInvalid, what is no power state.
func CheckPower(p Power) error {
	switch p {
	case PowerOn, PowerOff, PowerPaused:
		return nil
	}
	return Errorf(ErrInvalid, "action is %q: it must be %s, %s or %s", p, PowerOn, PowerOff, PowerPaused)
}

// RestartPolicy tells the engine's own restarter what to do when a server
// stops by itself. The values are those of the API.
type RestartPolicy string

// The restart policies.
const (
	RestartAlways    RestartPolicy = "Always"
	RestartOnFailure RestartPolicy = "OnFailure"
	RestartNever     RestartPolicy = "Never"
)

// PullPolicy says when an image is fetched. The values are those of the API;
// empty means PullIfNotPresent.
type PullPolicy string

// The pull policies.
const (
	PullIfNotPresent PullPolicy = "IfNotPresent"
	PullAlways       PullPolicy = "Always"
	PullNever        PullPolicy = "Never"
)

// Image is what a server boots. An empty Source means the driver's default.
type Image struct {
	Source     string
	Checksum   string // "sha256:<64 hex digits>" or empty
	PullPolicy PullPolicy
	Kernel     *Kernel
}

// Kernel is a kernel to boot directly.
type Kernel struct {
	Source, Initrd, Cmdline string
}

// Volume is a further disk. A nil Image means a blank one.
type Volume struct {
	Name      string
	SizeBytes int64
	Image     *Image
	ReadOnly  bool
}

// Port is reachable from outside of the server. A HostPort of zero lets the
// engine choose.
type Port struct {
	Name           string
	Protocol       string // "TCP" or "UDP"
	Port, HostPort int32
	// HostIP is the address of the host to open the port on; empty means all.
	HostIP string
}

// Secret is text that must not be seen: it prints as "[redacted]" under every
// verb and marshals so too.
type Secret struct{ text string }

// State is an engine's view of a server.
type State string

// The states.
const (
	// StatePending : there is no server yet, something is being fetched for it
	// (Progress), or was and waits for the next Ensure, or the fetch failed (Err).
	StatePending State = "Pending"
	// StateStarting : the server was started and is not up yet.
	StateStarting State = "Starting"
	// StateRunning : the server runs.
	StateRunning State = "Running"
	// StatePaused : the server is frozen.
	StatePaused State = "Paused"
	// StateStopping : the server was told to stop and still runs.
	StateStopping State = "Stopping"
	// StateStopped : the server is off; Exit tells how its last run ended, and
	// is nil if it never ran.
	StateStopped State = "Stopped"
	// StateRestarting : the engine's own restarter is about to start it again.
	StateRestarting State = "Restarting"
	// StateRemoving : the server is being removed.
	StateRemoving State = "Removing"
)

// Server is what a driver runs for a VirtualMachine.
type Server struct {
	UID types.UID
	// ID is the engine's name for the server, empty in StatePending, and where
	// nothing can be told of a server but that it is there: Err says why, and until
	// that is mended every call about it fails and changes nothing.
	ID              string
	Namespace, Name string
	// Run has a new value at every start; a restart names the run it ends.
	Run   string
	State State
	// Progress says what is under way, for people, for example a pull's progress.
	Progress string
	// Note says what of the spec the driver leaves aside, for people.
	Note string
	// Err is what failed in the background.
	Err error
	// Exit tells how the last run ended; nil while one is on.
	Exit      *Exit
	StartedAt time.Time
	// Applied is what the server has, which may not be what the spec says yet.
	Applied Resources
	// Pending names the fields of the spec that wait for a restart. List leaves
	// it empty where the spec is needed to tell; Ensure always fills it.
	Pending []string
	// Refused is the field of the spec that the server cannot have as long as it
	// exists; the rest was applied. Only Ensure sets it, List leaves it nil.
	Refused *Refused
	// ImageID is the digest of the image that the server was made from, where the
	// driver resolves one.
	ImageID string
	// Accelerator is AccelKVM or AccelTCG for a machine that runs, else empty.
	Accelerator string
	// Addresses under which the server answers: its own, or those of the host
	// where only Ports lead to it.
	Addresses []string
	// Ports of the host that lead to the server now. HostPort is always set,
	// and Name never: that is the spec's to tell.
	Ports []Port
	// Retained is set on a server that was released. It has no owner and is
	// never swept.
	Retained bool
}

// Refused is a field of the spec that a server cannot have.
type Refused struct {
	// Field of the spec, for example "image".
	Field string
	// Reason is a CamelCase word; Message names the value and what is allowed.
	Reason, Message string
}

// The accelerators of machines.
const (
	AccelKVM = "kvm"
	AccelTCG = "tcg"
)

// ExitHostShutdown is the reason of a run that ended because its host was shut
// down. Such a server is started again whatever its restart policy.
const ExitHostShutdown = "HostShutdown"

// Exit tells how a run ended.
type Exit struct {
	Code int
	// Reason is a CamelCase word: Completed, Error, OOMKilled, ...
	Reason string
	// Output is the end of what the engine's own process printed, at most 1 KiB,
	// where that explains a crash. It is never output of the guest.
	Output string
	// At is the engine's time, which may differ from any other clock.
	At time.Time
}

// Resources are what a server has. Zero means unknown.
type Resources struct {
	CPUMilli, MemoryBytes, RootDiskBytes int64
}

// Usage is a sample of what a server has used. CPU is a counter: the inventory
// computes rates from two samples of one run.
type Usage struct {
	UID         types.UID
	Run         string
	CPU         time.Duration
	MemoryBytes int64
	At          time.Time
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"io"
	"io/fs"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/terminal"
)

// Driver runs servers on one engine. Every method is idempotent, takes its
// context first and is safe for concurrent use.
//
// A call blocks for one mutation, seconds at most, under the deadline of its
// context. Longer work is split. A fetch (pull, download) runs in the background
// and never creates, starts or changes a server; Watch reports its end, and the
// next Ensure acts on it. A stop only sends the signal; a later Ensure forces it
// once StopBy has passed.
//
// A server is looked up by its UID label or directory, never by name. A server
// of another cluster is neither listed nor changed.
type Driver interface {
	// Ensure creates, adopts or updates one server so that it matches spec,
	// power state included, and returns the server as it is afterwards. It is
	// repeatable, even from two leaders at once: creation is atomic on the UID.
	//
	// While an image is being fetched, Ensure returns a server in StatePending with
	// the progress in Progress. A server with a stop under way is returned in
	// StateStopping. Fields that can only change at a restart are listed in Pending
	// and left alone until the server is started or RestartRun asks for a restart.
	//
	// Errors: ErrInvalid or ErrUnsupported for a spec that cannot be honoured,
	// ErrNotFound if there is no server of spec.ID, ErrRetry for a missing image,
	// ErrExhausted, ErrUnavailable, ErrFenced, and a RecordFirstError. After any other
	// error the mutation may have been done: look before repeating it.
	Ensure(ctx context.Context, spec ServerSpec) (Server, error)

	// Delete removes the server and everything that belongs to it, at once. With
	// retain it releases the server instead: first marked as released, then left
	// running; it is no longer the server of its UID and is never swept. Delete
	// cancels a fetch for the UID and waits for it to end.
	//
	// ErrNotFound means that nothing is left. Nil means that removal is done or
	// under way: List reports which.
	Delete(ctx context.Context, t Target, retain bool) error

	// List returns this cluster's servers, all of them if no UID is given,
	// including those with a fetch under way (StatePending). Without an error the
	// list is complete: a server that is missing from it is gone. Two servers with
	// one UID are both returned. For a refresh (ForRefresh) a driver may use a cache.
	List(ctx context.Context, uids ...types.UID) ([]Server, error)

	// Usage samples many servers in one call. Servers that do not run, and those
	// that do not answer, are missing from the result. Without UIDs the result is
	// empty.
	Usage(ctx context.Context, uids ...types.UID) ([]Usage, error)

	// Watch sends the UIDs of servers to look at again, until ctx ends. Callers
	// open it before List. It loses events only by closing: after the channel is
	// closed, open a new watch and list again.
	Watch(ctx context.Context) (<-chan types.UID, error)
}

// Identifier reports which engine a driver talks to. Every driver implements it;
// it is separate from Driver because only the inventory needs it.
type Identifier interface {
	// EngineID is the engine's lasting identity: the id that Docker reports, a UUID file in
	// the folder of fake and qemu, the UID of a cluster's namespace kube-system. It has at most
	// 128 characters of [A-Za-z0-9:._-].
	EngineID(ctx context.Context) (string, error)
}

// Fetcher fetches images for servers in the background (StatePending). It is optional.
type Fetcher interface {
	// Abandon ends the fetches for a server that is not wanted any more or was
	// deleted. It changes no server.
	Abandon(ctx context.Context, uid types.UID) error
}

// EndedReleaser removes the finalizers, or the like, by which a driver keeps servers without a
// VirtualMachine until they have ended. It is optional.
type EndedReleaser interface {
	// ReleaseEnded does so for the servers whose end is proven, if they were released or if gone
	// names them: the UIDs whose VirtualMachines are proven to be gone. It removes no data. Any
	// replica may call it, leader or not, since a proof is valid for all. Each sweep calls it.
	ReleaseEnded(ctx context.Context, gone ...types.UID) error
}

// Closer ends a driver's background work. It is optional.
type Closer interface {
	// Close cancels fetches and waits for them to end. An error reports a fetch
	// that did not end before ctx did.
	Close(ctx context.Context) error
}

// Prober checks whether a server accepts connections. It is for drivers where a
// plain connection proves nothing, because the forwarder that leads to the server
// accepts it whether the server does or not. It is optional.
type Prober interface {
	// Probe returns nil once a TCP port of the server, as numbered inside it, has
	// accepted a connection. It waits for that until ctx ends.
	Probe(ctx context.Context, uid types.UID, port int32) error
}

// Consoler attaches to the consoles of servers. It is optional.
type Consoler interface {
	// Console attaches to a server's console until it is closed or ctx ends.
	//
	// Many callers may read at a time. Each first gets the end of the earlier
	// output, then the output from then on, and io.EOF once the server has
	// stopped. A reader that is too slow misses some output.
	//
	// One caller may write at a time: the first to write has the right until Close,
	// and the Write of any other caller fails with ErrConsoleTaken.
	//
	// Errors: ErrNotFound, and ErrRetry for a server that does not run. A Write fails with
	// ErrUnsupported where the console can only be read. A Read whose error is neither
	// io.EOF nor the end of ctx has lost the engine: attach again.
	//
	// The console of a container image has the methods of InputConsole.
	Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error)
}

// InputConsole is the console of a command.
type InputConsole interface {
	// CloseWrite ends the input of the command. Close leaves it open.
	CloseWrite() error
	// Resize sets the size of the command's terminal, if it has one.
	Resize(size terminal.Size)
}

// LogReader reads what servers have printed. It is optional.
type LogReader interface {
	// Logs returns what a server has printed, oldest first: the serial log of a machine,
	// the output of a container. Without Follow it ends with io.EOF at what is there now;
	// with Follow it goes on until the server has stopped or ctx ends. The caller closes it.
	//
	// Errors: ErrNotFound, ErrInvalid for a negative number of lines, ErrUnsupported for an
	// engine that keeps no log, and ErrRetry where nothing was printed yet, or no previous
	// run is known. Reading fails with a terminal.LostOutputError where output was removed before it
	// was read.
	Logs(ctx context.Context, uid types.UID, o LogOptions) (io.ReadCloser, error)
}

// SplitLog is a log that keeps standard output and standard error apart. Read returns both.
type SplitLog interface {
	io.ReadCloser
	terminal.SplitReader
}

// LogOptions select a part of a log.
type LogOptions struct {
	// Follow waits for more at the end.
	Follow bool
	// Previous selects the log before the current one: that of a container's previous run, or
	// the rotated part of a machine's log.
	Previous bool
	// TailLines is how many lines from the end to return, of each stream where they are kept
	// apart; nil means all.
	TailLines *int64
	// Attached is for a caller who needs all that the run has printed. Output that was removed
	// is an error then, and a caller who reads slowly holds the server back where the driver
	// can do that.
	Attached bool
	// SkipStdout and SkipStderr are how many bytes of the run an attached caller has already.
	SkipStdout, SkipStderr int64
}

// Check returns ErrInvalid for options that no log can honour.
func (o LogOptions) Check() error {
	if o.TailLines != nil && *o.TailLines < 0 {
		return Errorf(ErrInvalid, "tailLines is %d: it must be 0 or more", *o.TailLines)
	}
	return nil
}

// Executor runs commands inside servers. It is optional.
type Executor interface {
	// Exec runs a command until it ends and returns its exit code, 128 plus the signal's
	// number if a signal ended it. If ctx ends first, the command is ended where the engine
	// can do that. Exec does not close the streams of the command, and a Read of Stdin that does
	// not return outlasts it: the caller ends that.
	//
	// Errors: ErrNotFound, ErrInvalid for a command that cannot be started (where the cause
	// is known, ErrCommandNotFound or ErrCommandNotExecutable), ErrUnsupported if this server
	// cannot do it (offers no terminal, runs no agent), and ErrRetry for a server that does
	// not run or has to be restarted first.
	Exec(ctx context.Context, uid types.UID, c terminal.Command) (exitCode int, err error)
}

// FileWriter replaces the files of servers that run. It is optional.
type FileWriter interface {
	// FileRevisions returns the revisions of the folders that the run has, by their paths, as the guest
	// reports them.
	FileRevisions(ctx context.Context, uid types.UID) (map[string]string, error)
	// WriteFiles replaces the files of a folder that the run has, at once. After an error it has its files.
	//
	// Errors of both: ErrNotFound, and ErrRetry for a server that does not run, does not answer or refuses.
	WriteFiles(ctx context.Context, uid types.UID, mount FileMount) error
}

// Dialer connects to TCP ports of servers. It is optional.
type Dialer interface {
	// Dial connects to a TCP port of the server, as numbered inside it. The caller closes the
	// connection; ctx only limits how long connecting takes.
	//
	// Errors: ErrNotFound, ErrInvalid for a port that cannot be reached, and ErrRetry for a
	// server that does not run or does not accept the connection.
	Dial(ctx context.Context, uid types.UID, port int32) (net.Conn, error)
}

// InterfaceLister reports the network interfaces that a server sees. It is optional.
type InterfaceLister interface {
	// Interfaces returns the network interfaces as the server sees them, without loopback.
	//
	// Errors: ErrNotFound, ErrUnsupported for a guest that runs no agent, and ErrRetry for a
	// server that does not run or has to be restarted first.
	Interfaces(ctx context.Context, uid types.UID) ([]report.Interface, error)
}

// NetworkReporter reports the traffic of servers' networks. It is optional.
type NetworkReporter interface {
	// NetworkStatistics returns the figures of a server's network since an instant that the
	// engine chooses, at the latest the start of the run.
	//
	// Errors: ErrNotFound, and ErrRetry for a server that does not run.
	NetworkStatistics(ctx context.Context, uid types.UID) (report.NetworkStatistics, error)
}

// Object is an object of a cluster that a server consists of. A driver that creates such objects
// has them recorded in the VirtualMachine's status, where nobody else writes: first the intent to
// create one, then which one it is.
type Object struct {
	Kind, Name string
	// Nonce is random. The object carries it, so that the one which was intended is told from
	// another of that name.
	Nonce string
	// UID of the object; empty as long as only the intent is recorded.
	UID types.UID
	// Ended is set once it is proven that a Pod has ended.
	Ended bool
	// Made is set once the disk of a PersistentVolumeClaim was made.
	Made bool
	// Images has the images that the spec of a Pod names by tag, or the image from which the disk
	// of a PersistentVolumeClaim was made.
	Images []ResolvedImage
}

// ResolvedImage is the result of resolving the tag of an image, before the server was made.
type ResolvedImage struct {
	// Source is the image as the spec, or the driver's default, names it.
	Source string `json:"source"`
	// Digest that the tag had; empty if it could not be resolved, which Message describes.
	Digest  string `json:"digest,omitempty"`
	Message string `json:"message,omitempty"`
	// Unproven is set until a server was made from the digest. Where that has failed, Digest is empty.
	Unproven bool `json:"unproven,omitempty"`
}

// Target names a server and carries the right to act on it.
type Target struct {
	// UID of the VirtualMachine; it identifies the server everywhere.
	UID types.UID
	// ID is the engine's name for the server, where it is known. If it is set, a
	// driver acts only on a server that matches both UID and ID.
	ID string
	// Epoch of the leader that acts. An engine that can compare epochs refuses, with
	// ErrFenced, one below the highest that has acted for the cluster. Zero belongs
	// to no leader and is not compared; it is for command line tools that run while
	// no leader does.
	Epoch uint64
}

// ServerSpec is the desired state of a server. The tag "spec" of a field is the name of the
// corresponding field in a VirtualMachine's spec. "-" means that there is none, and ",inline"
// that the fields of a struct are at the level of the outer struct: see Fields.
type ServerSpec struct {
	Target `spec:"-"`
	// Namespace and Name of the VirtualMachine.
	Namespace, Name string `spec:"-"`
	// Power that the server should have.
	Power Power `spec:"action"`
	// StopBy is when a stop that is under way is forced; the zero time means
	// never.
	StopBy time.Time `spec:"-"`
	// GracePeriod is how long the guest has to shut down when the host does, since
	// no caller is present then. Every other stop uses StopBy.
	GracePeriod time.Duration `spec:"shutdownGracePeriodSeconds"`
	// RestartRun names a run (Server.Run) to end before the server is started,
	// which restarts it once. It has no effect if that run is over.
	RestartRun string `spec:"-"`
	// Objects are the objects that the VirtualMachine's status records, for a driver that
	// asks for that with RecordFirstError.
	Objects []Object `spec:"-"`
	// SeenRun is the last run (Server.Run) in which the guest was seen to run, as the
	// VirtualMachine's status has recorded.
	SeenRun string `spec:"-"`
	// PowerOnly is set if the caller could not read all of the spec, for example
	// because a Secret is gone: only Power is applied, and Pending is not computed.
	PowerOnly bool `spec:"-"`

	// CPUMilli is in thousandths of a CPU, the sizes are in bytes. A
	// RootDiskBytes of zero leaves the size to the driver.
	CPUMilli      int64         `spec:"resource.cpu"`
	MemoryBytes   int64         `spec:"resource.memory"`
	RootDiskBytes int64         `spec:"resource.rootDisk"`
	Image         Image         `spec:"image"`
	Volumes       []Volume      `spec:"volumes"`
	Ports         []Port        `spec:"ports"`
	SSHKeys       []string      `spec:"sshAuthorizedKeys"`
	RestartPolicy RestartPolicy `spec:"restartPolicy"`
	UserData      Secret        `spec:"userData"`
	NetworkData   Secret        `spec:"networkData"`

	// Command and Args replace the entrypoint and the arguments of a container image, as in a
	// pod: without Command the entrypoint is kept, with it the image's arguments are not used.
	Command    []string `spec:"command"`
	Args       []string `spec:"args"`
	Env        []EnvVar `spec:"env"`
	WorkingDir string   `spec:"workingDir"`
	// Files are folders in the memory of the guest. FilesErr says why their content could not be read: a
	// driver then begins no run, and fails with FilesErr where it would.
	Files    []FileMount `spec:"files"`
	FilesErr error       `spec:"-"`
	// User is written as in an image, and replaces the image's.
	User string `spec:"user"`
	// Init is empty for the driver's default.
	Init Init `spec:"init"`
	// Stdin is set if the command has an input, which consoles write to, and TTY if it has a terminal.
	Stdin bool `spec:"stdin"`
	TTY   bool `spec:"tty"`
	// Sysctls are sorted by their names.
	Sysctls []Sysctl `spec:"sysctls"`

	// Ephemeral servers keep no root disk from one run to the next.
	Ephemeral bool `spec:"ephemeral"`
	// StorageClassName is nil for the cluster's default and empty for no class.
	StorageClassName *string `spec:"storageClassName"`
	// BlockEviction is true for Block, so that the default Allow does not count as set.
	BlockEviction bool      `spec:"evictionPolicy"`
	Placement     Placement `spec:",inline"`
	// Labels are the labels of the VirtualMachine.
	Labels map[string]string `spec:"-"`
	// RetainOnDelete is set if the server outlives its VirtualMachine.
	RetainOnDelete bool `spec:"-"`
	// ReadinessProbe is for a driver whose engine has a use for it. The controller probes every
	// server itself, so drivers need not have it.
	ReadinessProbe *Probe `spec:"-"`
}

// Probe is a check that the guest answers at a TCP port.
type Probe struct {
	Port, PeriodSeconds, TimeoutSeconds int32
}

// Placement says on which nodes a server may run, with which priority and runtime. It has the
// values of a pod's spec.
type Placement struct {
	NodeSelector              map[string]string                 `spec:"nodeSelector"`
	Affinity                  *corev1.Affinity                  `spec:"affinity"`
	Tolerations               []corev1.Toleration               `spec:"tolerations"`
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `spec:"topologySpreadConstraints"`
	PriorityClassName         string                            `spec:"priorityClassName"`
	RuntimeClassName          *string                           `spec:"runtimeClassName"`
}

// Power is a power state that a server should have.
type Power string

// Values of Power.
const (
	PowerOn     Power = "On"
	PowerOff    Power = "Off"
	PowerPaused Power = "Paused"
)

// RestartPolicy tells the engine whether to restart a server that stops by itself.
// It has the values of the API.
type RestartPolicy string

// Values of RestartPolicy.
const (
	RestartAlways    RestartPolicy = "Always"
	RestartOnFailure RestartPolicy = "OnFailure"
	RestartNever     RestartPolicy = "Never"
)

// PullPolicy says when an image is fetched. It has the values of the API; empty
// means PullIfNotPresent.
type PullPolicy string

// Values of PullPolicy.
const (
	PullIfNotPresent PullPolicy = "IfNotPresent"
	PullAlways       PullPolicy = "Always"
	PullNever        PullPolicy = "Never"
)

// Image is an image that a server boots. An empty Source means the driver's default.
type Image struct {
	Source     string     `spec:"source"`
	Checksum   string     `spec:"checksum"` // "sha256:<64 hex digits>" or empty
	PullPolicy PullPolicy `spec:"pullPolicy"`
	Kernel     *Kernel    `spec:"kernel"`
}

// Kernel is a kernel to boot directly.
type Kernel struct {
	Source  string `spec:"source"`
	Initrd  string `spec:"initrd"`
	Cmdline string `spec:"cmdline"`
}

// Volume is an additional disk. A nil Image means a blank one.
type Volume struct {
	Name      string `spec:"name"`
	SizeBytes int64  `spec:"size"`
	Image     *Image `spec:"source.image"`
	ReadOnly  bool   `spec:"readOnly"`
	// MountPath is the folder on which a server of a container image finds the volume's files; empty for none.
	MountPath string `spec:"mountPath"`
}

// Port is a port of the server that is reachable from outside it. With a HostPort
// of zero the engine chooses one.
type Port struct {
	Name     string `spec:"name"`
	Protocol string `spec:"protocol"` // "TCP" or "UDP"
	Port     int32  `spec:"port"`
	HostPort int32  `spec:"hostPort"`
	// HostIP is the address of the host to open the port on; empty means all.
	HostIP string `spec:"hostIP"`
}

// EnvVar is an environment variable of a server. It replaces a variable of the image with the same name.
type EnvVar struct {
	Name  string `spec:"name"`
	Value Secret `spec:"value"`
}

// FileMount is a folder of the guest whose files Drover replaces.
type FileMount struct {
	MountPath string `spec:"mountPath"`
	// Revision is another one for other Files. It reveals nothing about their content.
	Revision string `spec:"-"`
	Files    []File `spec:"-"`
}

// File is a file of a FileMount.
type File struct {
	// Path is relative to the folder, without "..".
	Path string
	Mode fs.FileMode
	Data Secret
}

// Sysctl is a parameter of the kernel, by its name with dots.
type Sysctl struct {
	Name  string `spec:"name" json:"name"`
	Value string `spec:"value" json:"value"`
}

// Secret is text that must not be shown: it prints as "[redacted]" under every
// verb, and marshals as that too.
type Secret struct{ text string }

// State is an engine's view of a server.
type State string

// Values of State.
const (
	// StatePending means that there is no server yet. A fetch for it is under way (Progress),
	// has ended and waits for the next Ensure, or has failed (Err).
	StatePending State = "Pending"
	// StateStarting means that the server was started and is not up yet.
	StateStarting State = "Starting"
	// StateRunning means that the server runs.
	StateRunning State = "Running"
	// StatePaused means that the server is frozen.
	StatePaused State = "Paused"
	// StateStopping means that the server was asked to stop and still runs, or that its guest has
	// ended, as Exit describes, and other parts of it still run.
	StateStopping State = "Stopping"
	// StateStopped means that the server is off. Exit describes how its last run ended, and
	// is nil if it never ran.
	StateStopped State = "Stopped"
	// StateRestarting means that the engine is about to restart the server without Drover.
	StateRestarting State = "Restarting"
	// StateRemoving means that the server is being removed.
	StateRemoving State = "Removing"
	// StateUnknown means that the server exists and that nothing tells whether it runs. Err says
	// why, and Ensure fails until that is known again.
	StateUnknown State = "Unknown"
)

// Server is a container, machine or pod that a driver runs for a VirtualMachine.
type Server struct {
	UID types.UID
	// ID is the engine's name for the server. It is empty in StatePending, and if nothing but
	// the server's existence is known: then Err has the cause, and every call about the
	// server fails and changes nothing until the cause is repaired.
	ID              string
	Namespace, Name string
	// Run has a new value at every start; RestartRun refers to it.
	Run   string
	State State
	// Progress describes what is under way, for users, for example a pull's progress.
	Progress string
	// Disruption describes, for users, why someone other than Drover and the guest ends or has ended
	// the run, as far as the engine shows that: an eviction, for example.
	Disruption string
	// Host is where the server is, in an engine with several hosts.
	Host string
	// HostLost is set while the host does not report, so that the server may run or not: Err says so.
	HostLost bool
	// IsUnschedulable is set while the engine finds no host for a server that starts; Progress
	// describes why.
	IsUnschedulable bool
	// IsLeaving is set while the engine still removes the remains of the last run, before the next one
	// can begin; Progress describes that. Meanwhile Ensure succeeds without starting the server, and
	// has to be called again afterwards.
	IsLeaving bool
	// IsBooting is set while a guest runs that has not started its image's command. It is not set if the
	// driver cannot know.
	IsBooting bool
	// Note describes the parts of the spec that the driver ignores, for users.
	Note string
	// Err is a failure in the background.
	Err error
	// NotReady describes, for users, why the engine considers a server that runs not ready. It is
	// empty if the engine checks nothing.
	NotReady string
	// Exit describes how the last run, or its guest, ended; nil during a run.
	Exit      *Exit
	StartedAt time.Time
	// Applied has the resources of the server, which may differ from the spec.
	Applied Resources
	// Pending lists the fields of the spec that wait for a restart. List leaves
	// it empty if it cannot be computed without the spec; Ensure always fills it.
	Pending []string
	// Refused is a field of the spec that the server can never have while it
	// exists; the rest was applied. Only Ensure sets it, List leaves it nil.
	Refused *Refused
	// ImageID is the digest of the image that the server was made from, if the
	// driver resolves one.
	ImageID string
	// Accelerator is AccelKVM or AccelTCG for a machine that runs, else empty.
	Accelerator string
	// Confinement says how a server that runs is confined; nil where the driver leaves that
	// to its engine.
	Confinement *Confinement
	// Addresses at which the server answers: first an address of the server itself, if others
	// can reach one, then the addresses of the host if Ports lead to it.
	Addresses []string
	// Ports of the host that lead to the server now. HostPort is always set.
	// Name is never set, because only the spec has it.
	Ports []Port
	// UnpublishedPorts is the result of kit.UnpublishedPorts for a container image that runs.
	UnpublishedPorts []string
	// Objects are the objects that the VirtualMachine's status should record. List leaves them
	// nil.
	Objects []Object
	// NeedsEnsure is set if something waits for an Ensure although the server is as its spec
	// says, for example a pod whose end has to be recorded before others may remove it.
	NeedsEnsure bool
	// Retained is set on a server that was released. Nothing owns it, and it is never
	// swept.
	Retained bool
}

// MayBeOrphan reports whether a server is an orphan if no VirtualMachine owns it. It is not if
// the server was released, or if nothing but its existence is known.
func (s Server) MayBeOrphan() bool {
	return !s.Retained && s.State != StatePending && s.ID != ""
}

// Refused is a field of the spec that a server cannot have.
type Refused struct {
	// Field of the spec, for example "image".
	Field string
	// Reason is a CamelCase word; Message names the value and the allowed ones.
	Reason, Message string
}

// Values of Server.Accelerator.
const (
	AccelKVM = "kvm"
	AccelTCG = "tcg"
)

// ExitHostShutdown is the reason of a run that ended because its host was shut
// down.
const ExitHostShutdown = "HostShutdown"

// Reasons of a run in which no guest has run. Such a server is started again whatever its restart
// policy, with growing delays.
const (
	// ExitNeverRan means that the server was removed before it was started.
	ExitNeverRan = "NeverRan"
	// ExitRejected means that the host refused to run the server.
	ExitRejected = "Rejected"
	// ExitNotStarted means that something the guest needs, such as its disk, could not be prepared.
	ExitNotStarted = "NotStarted"
)

// Init is which program is process 1 of a container image, with the values of the API.
type Init string

// Values of Init. With InitDrover process 1 only reaps orphans, and the command is its child.
const (
	InitImage  Init = "Image"
	InitDrover Init = "Drover"
)

// Exit describes how a run ended.
type Exit struct {
	Code int
	// Signal is the number of the signal that ended the guest's command; 0 for none, or if the engine does not tell.
	Signal int
	// Reason is a CamelCase word: Completed, Error, OOMKilled, ...
	Reason string
	// Output is the end of the output of the engine's process, at most 1 KiB, if
	// that explains a crash. It is never output of the guest.
	Output string
	// Message is the guest's description of the end, for users: one line of printable text.
	Message string
	// At is the engine's time, which may differ from any other clock.
	At time.Time
	// StopRequested is set if the end was requested from outside of the guest, as by a drain.
	StopRequested bool
	// Evicted is set if the host itself ended the run, because the run used too much of it or it runs
	// out of something. The next run may end in the same way.
	Evicted bool
}

// ByHost reports whether the host, or someone who drains it, has ended the run, and not the guest. The
// server is then started again whatever its restart policy is.
func (e *Exit) ByHost() bool { return e.StopRequested || e.Reason == ExitHostShutdown }

// NeverRan reports whether no guest has run.
func (e *Exit) NeverRan() bool {
	return e.Reason == ExitNeverRan || e.Reason == ExitRejected || e.Reason == ExitNotStarted
}

// Confinement says whether a server runs as another user than Drover's, or under Landlock.
type Confinement struct {
	Reason  string // ReasonConfined, ReasonStartedBefore or ReasonNotConfined
	Message string // for users
}

// Values of Confinement.Reason.
const (
	ReasonConfined      = "Confined"
	ReasonStartedBefore = "StartedBefore"
	ReasonNotConfined   = "NotConfined"
)

// Resources are the resources of a server. Zero means unknown.
type Resources struct {
	CPUMilli, MemoryBytes, RootDiskBytes int64
}

// Usage is a sample of the resources that a server has used. CPU is a counter: the
// inventory computes rates from two samples of one run.
type Usage struct {
	UID         types.UID
	Run         string
	CPU         time.Duration
	MemoryBytes int64
	At          time.Time
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// Input is everything that Decide considers, as plain data: inputs can be compared with ==, and
// their JSON is kept in records. Input is also an allowlist: it lacks fields for user-data, command
// lines, labels and annotations, so they cannot get into a record. The controller fills in the
// fields, and leaves a field empty if the fact does not exist.
type Input struct {
	Now time.Time `json:"now"`
	VM  VM        `json:"vm"`
	// Observed is the inventory's answer about the VM's server.
	Observed Observed `json:"observed,omitzero"`
	// Driver is the VM's driver, empty if that driver does not run here.
	Driver string `json:"driver,omitzero"`
	// Drivers are the drivers that run here, for messages.
	Drivers List `json:"drivers,omitzero"`
	// Epoch is the epoch of the leader that decides.
	Epoch int64 `json:"epoch,omitzero"`
	// Done is the operation that has just succeeded, if any.
	Done api.OperationType `json:"done,omitzero"`
	// PassedGeneration is the generation of the spec that was last passed to the driver.
	PassedGeneration int64 `json:"passedGeneration,omitzero"`
	// Probe is the readiness probe's result for a running server.
	Probe ProbeResult `json:"probe,omitzero"`
	// Since has the instants from which waits are counted.
	Since Instants `json:"since,omitzero"`
	// DeletionBlocker says why the deletion of a VM without a binding waits: another driver's
	// engine has the server, or may have it.
	DeletionBlocker string `json:"deletionBlocker,omitzero"`
}

// VM has the facts of a VirtualMachine.
type VM struct {
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	// IsDeleted is set once the deletion of the object was requested.
	IsDeleted bool `json:"deleted,omitzero"`
	// Binding is the result of BindingOf, and IsBound the result of the function IsBound, both
	// for the object.
	Binding api.Binding `json:"binding,omitzero"`
	IsBound bool        `json:"bound"`
	Spec    Spec        `json:"spec"`
	Status  Status      `json:"status"`
}

// Spec has the facts of a spec. The grace period and the sizes have their defaults.
type Spec struct {
	Action             api.Action         `json:"action,omitzero"`
	Driver             string             `json:"driver,omitzero"`
	DeletionPolicy     api.DeletionPolicy `json:"deletionPolicy,omitzero"`
	RestartPolicy      api.RestartPolicy  `json:"restartPolicy,omitzero"`
	RestartedAt        time.Time          `json:"restartedAt,omitzero"`
	GracePeriodSeconds int64              `json:"shutdownGracePeriodSeconds"`
	Size
}

// Size is the size of a server. Zero means unknown.
type Size struct {
	CPUMilli    int64 `json:"cpuMilli,omitzero"`
	MemoryBytes int64 `json:"memoryBytes,omitzero"`
}

// Status has the facts of a status.
type Status struct {
	ObservedGeneration int64            `json:"observedGeneration,omitzero"`
	Server             ServerStatus     `json:"server,omitzero"`
	Operation          Operation        `json:"operation,omitzero"`
	PendingFields      List             `json:"pendingFields,omitzero"`
	RefusedField       api.RefusedField `json:"refusedField,omitzero"`
	RestartedAt        time.Time        `json:"restartedAt,omitzero"`
	StartTime          time.Time        `json:"startTime,omitzero"`
	// Ready is set if condition Ready is true.
	Ready bool `json:"ready,omitzero"`
}

// ServerStatus has the facts of status.server.
type ServerStatus struct {
	ID         string `json:"id,omitzero"`
	State      State  `json:"state,omitzero"`
	StoppedRun string `json:"stoppedRun,omitzero"`
	Run        string `json:"run,omitzero"`
}

// Operation has the facts of status.operation. If Type is empty, the status lacks an operation.
type Operation struct {
	Type          api.OperationType    `json:"type"`
	Generation    int64                `json:"generation,omitzero"`
	Attempts      int32                `json:"attempts,omitzero"`
	NextRetryTime time.Time            `json:"nextRetryTime,omitzero"`
	Failure       api.OperationFailure `json:"failure,omitzero"`
	Reason        string               `json:"reason,omitzero"`
	LastError     string               `json:"lastError,omitzero"`
	Run           string               `json:"run,omitzero"`
	RestartedAt   time.Time            `json:"restartedAt,omitzero"`
	Epoch         int64                `json:"epoch,omitzero"`
	// Evicted is set while Attempts counts starts after evictions by the host.
	Evicted bool `json:"evicted,omitzero"`
}

// IsCounting reports whether the operation counts starts in a row that have not led to a stable run yet.
func (o Operation) IsCounting() bool { return o.Type == api.OperationStart && o.Attempts > 0 }

// Observed has the facts of the inventory's answer.
type Observed struct {
	Answer Answer `json:"answer,omitzero"`
	// Server is the server, if Answer is Present.
	Server Server `json:"server,omitzero"`
	// Duplicates are the IDs of all servers of the VM if there is more than one.
	Duplicates List   `json:"duplicates,omitzero"`
	EngineID   string `json:"engineID,omitzero"`
	// DownSince, Cause, BackSince, Fenced and SettlesAt are copied from inventory.Observation.
	DownSince time.Time `json:"downSince,omitzero"`
	Cause     string    `json:"cause,omitzero"`
	BackSince time.Time `json:"backSince,omitzero"`
	Fenced    bool      `json:"fenced,omitzero"`
	SettlesAt time.Time `json:"settlesAt,omitzero"`
}

// Answer says whether the VM is known to have a server.
type Answer string

// Values of Answer.
const (
	Unknown Answer = ""
	Gone    Answer = "gone"
	Present Answer = "present"
)

// Server has the facts of a driver.Server, which describes the fields.
type Server struct {
	ID       string `json:"id,omitzero"`
	Run      string `json:"run,omitzero"`
	State    State  `json:"state,omitzero"`
	Progress string `json:"progress,omitzero"`
	Note     string `json:"note,omitzero"`
	// Error is the text of a failure in the background. ErrorReason is the reason of that failure,
	// or empty if the driver gives none.
	Error       string    `json:"error,omitzero"`
	ErrorReason string    `json:"errorReason,omitzero"`
	Exit        Exit      `json:"exit,omitzero"`
	StartedAt   time.Time `json:"startedAt,omitzero"`
	// Applied is the size that the server has now.
	Applied         Size   `json:"applied,omitzero"`
	NeedsEnsure     bool   `json:"needsEnsure,omitzero"`
	HostLost        bool   `json:"hostLost,omitzero"`
	Disruption      string `json:"disruption,omitzero"`
	IsUnschedulable bool   `json:"unschedulable,omitzero"`
	IsLeaving       bool   `json:"leaving,omitzero"`
	IsBooting       bool   `json:"booting,omitzero"`
}

// Exit says how a run ended. Of the guest it has the description of the end, and none of its output.
type Exit struct {
	// HasEnded is set if a run, or its guest, has ended.
	HasEnded bool   `json:"ended"`
	Code     int    `json:"code"`
	Reason   string `json:"reason,omitzero"`
	// Message is the guest's description of the end.
	Message string    `json:"message,omitzero"`
	At      time.Time `json:"at,omitzero"`
	// ByHost is set if the host ended the run, not the guest. NeverRan is set if no guest ran in
	// the run, and StartFailed also if the reason is a failed start.
	ByHost      bool `json:"byHost,omitzero"`
	NeverRan    bool `json:"neverRan,omitzero"`
	StartFailed bool `json:"notStarted,omitzero"`
	// Evicted is set if the host ended the run because of the resources that it used.
	Evicted bool `json:"evicted,omitzero"`
}

// State is the state of a server, in the words of package driver.
type State string

// Values of State.
const (
	StatePending    State = "Pending"
	StateStarting   State = "Starting"
	StateRunning    State = "Running"
	StatePaused     State = "Paused"
	StateStopping   State = "Stopping"
	StateStopped    State = "Stopped"
	StateRestarting State = "Restarting"
	StateRemoving   State = "Removing"
	StateUnknown    State = "Unknown"
)

// Power is the power state that a driver gives a server, in the words of package driver.
type Power string

// Values of Power.
const (
	PowerOn     Power = "On"
	PowerOff    Power = "Off"
	PowerPaused Power = "Paused"
)

// ProbeResult is the result of a readiness probe.
type ProbeResult struct {
	// Wanted is set if the spec has a probe.
	Wanted bool `json:"wanted,omitzero"`
	// Completed is set once the result is known: the server was probed, or it cannot be probed
	// because it does not run or lacks an address. OK is set if the last probe succeeded;
	// otherwise Message says why it failed.
	Completed bool   `json:"completed,omitzero"`
	OK        bool   `json:"ok,omitzero"`
	Message   string `json:"message,omitzero"`
}

// Instants has the instants from which waits are counted, by this process's clock. The
// zero time means that the fact does not hold.
//
// Times in objects and on servers come from other clocks: the clock of the API server, of the engine, of
// another replica. They are displayed and compared for equality, but no wait is counted from them, since
// each clock may be an hour off. After a failover, a wait is counted from when the new leader first observed
// the cause of the wait, so the failover at most doubles the wait.
type Instants struct {
	// Deletion is when the deletion of the object was first observed.
	Deletion time.Time `json:"deletion,omitzero"`
	// Operation is when status.operation was first observed, and Failure when the last
	// failure of this operation was first observed.
	Operation time.Time `json:"operation,omitzero"`
	Failure   time.Time `json:"failure,omitzero"`
	// Cleanup is when the cleanup after the last run became due (IsCleanupDue).
	Cleanup time.Time `json:"cleanup,omitzero"`
	// Run is when the server's run was first observed running, and Exit when the run was
	// first observed to have ended.
	Run  time.Time `json:"run,omitzero"`
	Exit time.Time `json:"exit,omitzero"`
}

// List is a list of names that compares with ==. Each name ends with nameEnd.
type List string

const (
	nameEnd = "\x00"
	// maxNames bounds a list. A status has at most 64 fields.
	maxNames = 64
)

// ListOf returns a list of the first maxNames names.
func ListOf(names ...string) List {
	var l strings.Builder
	for _, name := range names[:min(len(names), maxNames)] {
		l.WriteString(name + nameEnd)
	}
	return List(l.String())
}

// Names returns the list as a slice, nil if it is empty.
func (l List) Names() []string {
	if l == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(l), nameEnd), nameEnd)
}

// MarshalJSON implements json.Marshaler.
func (l List) MarshalJSON() ([]byte, error) { return json.Marshal(l.Names()) }

// UnmarshalJSON implements json.Unmarshaler.
func (l *List) UnmarshalJSON(text []byte) error {
	var names []string
	err := json.Unmarshal(text, &names)
	*l = ListOf(names...)
	return err
}

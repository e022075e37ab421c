// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Names that Drover puts on VirtualMachines and on the servers that it runs.
const (
	// FinalizerServer keeps a VirtualMachine until its server is proven gone.
	FinalizerServer = "cloudnative.tw/server"
	// AnnotationBound says where the server is: "<driver>/<engine id>". It is
	// written together with the finalizer and rules over spec, flags and status.
	AnnotationBound = "cloudnative.tw/bound"
)

// Condition types of a VirtualMachine.
const (
	// ConditionReady is true while the server is as the spec says, so a
	// VirtualMachine that is stopped on purpose is ready.
	ConditionReady = "Ready"
	// ConditionRunning is true while the server runs.
	ConditionRunning = "Running"
	// ConditionObserved is false while the engine cannot be asked about the server.
	ConditionObserved = "Observed"
	// ConditionRestartRequired is true while a change waits for a restart. It
	// is absent otherwise.
	ConditionRestartRequired = "RestartRequired"
	// ConditionDeletionBlocked says why a deletion does not come to its end. It
	// is absent otherwise.
	ConditionDeletionBlocked = "DeletionBlocked"
	// ConditionStalled is true when only a new spec can help. It is absent
	// otherwise (kstatus reads it so).
	ConditionStalled = "Stalled"
)

// Reasons in status.reason and in the conditions.
const (
	// ReasonRunning : the server runs.
	ReasonRunning = "Running"
	// ReasonStarting : the server is being started or boots.
	ReasonStarting = "Starting"
	// ReasonStopping : the server was told to stop and has not ended yet.
	ReasonStopping = "Stopping"
	// ReasonStoppedAsAsked : the server is off because the spec says so.
	ReasonStoppedAsAsked = "StoppedAsAsked"
	// ReasonPausedAsAsked : the server is frozen because the spec says so.
	ReasonPausedAsAsked = "PausedAsAsked"
	// ReasonCompleted : the server ended by itself, well, and its restart
	// policy leaves it so.
	ReasonCompleted = "Completed"
	// ReasonExited : the server ended by itself, badly, and its restart policy
	// leaves it so.
	ReasonExited = "Exited"
	// ReasonRestarting : the server is being restarted, by Drover or by the
	// engine's own restarter.
	ReasonRestarting = "Restarting"
	// ReasonCreating : the server is being made.
	ReasonCreating = "Creating"
	// ReasonUpdating : the server is being changed to what the spec says.
	ReasonUpdating = "Updating"
	// ReasonFetching : an image is being pulled or downloaded.
	ReasonFetching = "Fetching"
	// ReasonTerminating : the server is being removed.
	ReasonTerminating = "Terminating"
	// ReasonReleasing : the server is being let go (deletionPolicy Retain).
	ReasonReleasing = "Releasing"
	// ReasonProbeFailing : the server runs and its readiness probe does not
	// answer.
	ReasonProbeFailing = "ProbeFailing"

	// ReasonEngineUnavailable : the engine cannot be reached.
	ReasonEngineUnavailable = "EngineUnavailable"
	// ReasonEngineMismatch : the engine that answers is not the one that the
	// VirtualMachine is bound to.
	ReasonEngineMismatch = "EngineMismatch"
	// ReasonFenced : the engine refuses this controller, because one with a higher
	// epoch has acted on it.
	ReasonFenced = "Fenced"
	// ReasonUnresponsive : the engine answers, but not about this server.
	ReasonUnresponsive = "Unresponsive"
	// ReasonUnknownDriver : spec.driver names no driver that runs here.
	ReasonUnknownDriver = "UnknownDriver"
	// ReasonInvalid : the driver refuses the spec.
	ReasonInvalid = "Invalid"
	// ReasonImageImmutable : the image of a server that has a root disk cannot be
	// changed.
	ReasonImageImmutable = "ImageImmutable"
	// ReasonDiskError : the guest was paused by an error of its disk that is not one
	// of room, and waits for the disk to work again.
	ReasonDiskError = "DiskError"
	// ReasonMachineTypeUnavailable : the QEMU that is installed does not know the
	// machine type that the server was made with.
	ReasonMachineTypeUnavailable = "MachineTypeUnavailable"
	// ReasonUnsupported : the driver cannot honour a field of the spec.
	ReasonUnsupported = "Unsupported"
	// ReasonExhausted : the engine has not enough of a resource.
	ReasonExhausted = "Exhausted"
	// ReasonImageUnavailable : the image is missing or could not be fetched.
	ReasonImageUnavailable = "ImageUnavailable"
	// ReasonNameConflict : something that is not Drover's has the server's name.
	ReasonNameConflict = "NameConflict"
	// ReasonPortConflict : a hostPort is taken.
	ReasonPortConflict = "PortConflict"
	// ReasonDuplicate : two servers carry this VirtualMachine's UID.
	ReasonDuplicate = "Duplicate"
	// ReasonSecretUnavailable : a Secret or key that the spec names is not there.
	ReasonSecretUnavailable = "SecretUnavailable"
	// ReasonOperationFailed : the engine failed a call.
	ReasonOperationFailed = "OperationFailed"
	// ReasonObserved : the engine answered.
	ReasonObserved = "Observed"
	// ReasonChangePending : a change of the spec waits for a restart.
	ReasonChangePending = "ChangePending"
)

// Reasons of events that are no condition's reason.
const (
	// EventCreated : a server was made.
	EventCreated = "Created"
	// EventStarted : a server was started.
	EventStarted = "Started"
	// EventStopped : a server was stopped.
	EventStopped = "Stopped"
	// EventPaused : a server was paused.
	EventPaused = "Paused"
	// EventResumed : a server was resumed.
	EventResumed = "Resumed"
	// EventAdopted : a server that was there already was taken over.
	EventAdopted = "Adopted"
	// EventRestarted : a server was restarted.
	EventRestarted = "Restarted"
	// EventUpdated : a server was changed.
	EventUpdated = "Updated"
	// EventRecreated : a server had gone and was made again.
	EventRecreated = "Recreated"
	// EventOrphanDeleted : a server without a VirtualMachine was removed.
	EventOrphanDeleted = "OrphanDeleted"
	// EventOrphanFound : a server without a VirtualMachine was found.
	EventOrphanFound = "OrphanFound"
	// EventCrashed : a server ended by itself, badly.
	EventCrashed = "Crashed"
	// EventEngineFenced : the engine refuses the leader, and its VirtualMachines wait.
	EventEngineFenced = "EngineFenced"
	// EventLeaderConflict : another Drover leads in this cluster.
	EventLeaderConflict = "LeaderConflict"
	// EventOrphanSweepFrozen : too many servers look orphaned to delete them.
	EventOrphanSweepFrozen = "OrphanSweepFrozen"
)

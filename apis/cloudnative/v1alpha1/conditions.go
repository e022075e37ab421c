// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Names that Drover puts on VirtualMachines and on the servers that it runs.
const (
	// FinalizerServer is the finalizer that keeps a VirtualMachine until its server is
	// proven gone.
	FinalizerServer = "cloudnative.tw/server"
	// AnnotationBound is the annotation that says where the server is, as
	// "<driver>/<engine id>/<uid>". It is written together with the finalizer and takes
	// precedence over the spec and the flags. The status takes precedence over it. One
	// with another UID came with a copied object, and is ignored.
	AnnotationBound = "cloudnative.tw/bound"
	// AnnotationMachineIsOff asserts that the machine of a pod, whose UID is the value, is
	// off: docs/cluster.md says when it counts and who may set it.
	AnnotationMachineIsOff = "cloudnative.tw/machine-is-off"
)

// Condition types of a VirtualMachine.
const (
	// ConditionReady is true while the server is as the spec says. A VirtualMachine that
	// is stopped on purpose is ready.
	ConditionReady = "Ready"
	// ConditionRunning is true while the server runs.
	ConditionRunning = "Running"
	// ConditionObserved is false while the engine cannot be asked about the server.
	ConditionObserved = "Observed"
	// ConditionRestartRequired is true while a change waits for a restart, and absent
	// otherwise.
	ConditionRestartRequired = "RestartRequired"
	// ConditionDeletionBlocked is true while a deletion cannot complete, and absent
	// otherwise. The message says why.
	ConditionDeletionBlocked = "DeletionBlocked"
	// ConditionConfined is true while a machine runs as another user than Drover's, or under
	// Landlock. It is absent while the machine is off, and where the driver leaves that to
	// its engine.
	ConditionConfined = "Confined"
	// ConditionFilesCurrent is false while the files of spec.files in the guest are older than
	// their Secrets and ConfigMaps. It is absent without such files and while the server is off.
	ConditionFilesCurrent = "FilesCurrent"
	// ConditionStalled is true when only a new spec can help, and absent otherwise, as
	// kstatus expects.
	ConditionStalled = "Stalled"
)

// Reasons in status.reason and in the conditions.
const (
	// ReasonRunning means that the server runs.
	ReasonRunning = "Running"
	// ReasonStarting means that the server is being started or boots.
	ReasonStarting = "Starting"
	// ReasonUnschedulable means that the server is to start, and that the cluster's scheduler
	// has found no node for it.
	ReasonUnschedulable = "Unschedulable"
	// ReasonStopping means that the server got the request to stop and has not ended yet.
	ReasonStopping = "Stopping"
	// ReasonStoppedAsAsked means that the server is off because the spec says so.
	ReasonStoppedAsAsked = "StoppedAsAsked"
	// ReasonPausedAsAsked means that the server is frozen because the spec says so.
	ReasonPausedAsAsked = "PausedAsAsked"
	// ReasonCompleted means that the server ended successfully by itself, and that its
	// restart policy leaves it off.
	ReasonCompleted = "Completed"
	// ReasonExited means that the server failed by itself, and that its restart policy
	// leaves it off.
	ReasonExited = "Exited"
	// ReasonRestarting means that Drover or the engine is restarting the server.
	ReasonRestarting = "Restarting"
	// ReasonCreating means that the server is being created.
	ReasonCreating = "Creating"
	// ReasonUpdating means that a change of the spec is being applied to the server.
	ReasonUpdating = "Updating"
	// ReasonFetching means that an image is being pulled or downloaded.
	ReasonFetching = "Fetching"
	// ReasonTerminating means that the server is being removed.
	ReasonTerminating = "Terminating"
	// ReasonDeletionHeld means that the server is being removed, and that something outside of
	// Drover, such as a finalizer or a node that does not answer, keeps a part of it.
	ReasonDeletionHeld = "DeletionHeld"
	// ReasonReleasing means that the server is being released (deletionPolicy Retain).
	ReasonReleasing = "Releasing"
	// ReasonBooting means that the server runs and that its guest has not started the image's
	// command yet.
	ReasonBooting = "Booting"
	// ReasonProbeFailing means that the server runs and that its readiness probe fails.
	ReasonProbeFailing = "ProbeFailing"

	// ReasonEngineUnavailable means that the engine cannot be reached.
	ReasonEngineUnavailable = "EngineUnavailable"
	// ReasonEngineMismatch means that the engine that answers is not the one that the
	// VirtualMachine is bound to.
	ReasonEngineMismatch = "EngineMismatch"
	// ReasonFenced means that the engine refuses this controller, because one with a
	// higher epoch has acted on it.
	ReasonFenced = "Fenced"
	// ReasonUnresponsive means that the engine answers, but not about this server.
	ReasonUnresponsive = "Unresponsive"
	// ReasonUnknownDriver means that spec.driver names no driver that runs here.
	ReasonUnknownDriver = "UnknownDriver"
	// ReasonInvalid means that the driver refuses the spec.
	ReasonInvalid = "Invalid"
	// ReasonImageImmutable means that the spec names another image than the one of the
	// server's root disk, which holds data.
	ReasonImageImmutable = "ImageImmutable"
	// ReasonDiskError means that the guest was paused by an error of its disk, other than
	// a full one, and waits for the disk to work again.
	ReasonDiskError = "DiskError"
	// ReasonMachineTypeUnavailable means that the installed QEMU does not know the machine
	// type with which the server was created.
	ReasonMachineTypeUnavailable = "MachineTypeUnavailable"
	// ReasonMachineUserUnavailable means that the user of machines does not exist on the
	// host, or that Drover may not switch to it.
	ReasonMachineUserUnavailable = "MachineUserUnavailable"
	// ReasonUnsupported means that the driver cannot honour a field of the spec.
	ReasonUnsupported = "Unsupported"
	// ReasonExhausted means that the engine lacks a resource.
	ReasonExhausted = "Exhausted"
	// ReasonImageUnavailable means that the image is missing or could not be fetched.
	ReasonImageUnavailable = "ImageUnavailable"
	// ReasonNameConflict means that something that is not Drover's has the server's name.
	ReasonNameConflict = "NameConflict"
	// ReasonVolumeLost means that the PersistentVolumeClaim of a disk is gone. No empty one
	// is made in its place.
	ReasonVolumeLost = "VolumeLost"
	// ReasonVolumeDeleting means that the PersistentVolumeClaim of a disk was deleted, and goes
	// once the server's pod does. Drover does not restart the server.
	ReasonVolumeDeleting = "VolumeDeleting"
	// ReasonPodLost means that the server's pod is gone, or that its kubelet has lost the
	// machine's container, and nothing proves that this has ended.
	ReasonPodLost = "PodLost"
	// ReasonLaterEpoch means that an object of the server has the epoch of a later leader.
	ReasonLaterEpoch = "LaterEpoch"
	// ReasonQuotaExceeded, ReasonForbidden, ReasonNamespaceTerminating and
	// ReasonObjectRefused mean that the cluster refuses an object of the server.
	ReasonQuotaExceeded        = "QuotaExceeded"
	ReasonForbidden            = "Forbidden"
	ReasonNamespaceTerminating = "NamespaceTerminating"
	ReasonObjectRefused        = "ObjectRefused"
	// ReasonPortConflict means that a hostPort is taken.
	ReasonPortConflict = "PortConflict"
	// ReasonDuplicate means that two servers carry the VirtualMachine's UID.
	ReasonDuplicate = "Duplicate"
	// ReasonSecretUnavailable means that a Secret or key that the spec names does not exist.
	ReasonSecretUnavailable = "SecretUnavailable"
	// ReasonFilesUnavailable means that a Secret or ConfigMap of spec.files, or a key of it, does
	// not exist or cannot be used.
	ReasonFilesUnavailable = "FilesUnavailable"
	// ReasonFilesCurrent means that the guest has the files of spec.files as they are now.
	ReasonFilesCurrent = "FilesCurrent"
	// ReasonFilesStale means that the guest has older files of spec.files, and that new ones could
	// not be written.
	ReasonFilesStale = "FilesStale"
	// ReasonOperationFailed means that the engine failed a call.
	ReasonOperationFailed = "OperationFailed"
	// ReasonObserved means that the engine answered.
	ReasonObserved = "Observed"
	// ReasonConfined means that the server runs as another user than Drover's, or under
	// Landlock.
	ReasonConfined = "Confined"
	// ReasonStartedBefore means that Drover would now start the server as another user. A
	// restart helps.
	ReasonStartedBefore = "StartedBefore"
	// ReasonNotConfined means that the server has Drover's user and no Landlock, so that only
	// the filter of system calls confines it.
	ReasonNotConfined = "NotConfined"
	// ReasonChangePending means that a change of the spec waits for a restart.
	ReasonChangePending = "ChangePending"
)

// Reasons of events that are not reasons of conditions.
const (
	// EventCreated reports that a server was created.
	EventCreated = "Created"
	// EventStarted reports that a server was started.
	EventStarted = "Started"
	// EventStopped reports that a server was stopped.
	EventStopped = "Stopped"
	// EventPaused reports that a server was paused.
	EventPaused = "Paused"
	// EventResumed reports that a server was resumed.
	EventResumed = "Resumed"
	// EventAdopted reports that an existing server was taken over.
	EventAdopted = "Adopted"
	// EventRestarted reports that a server was restarted.
	EventRestarted = "Restarted"
	// EventUpdated reports that a server was changed.
	EventUpdated = "Updated"
	// EventRecreated reports that a server had disappeared and was created again.
	EventRecreated = "Recreated"
	// EventOrphanDeleted reports that a server without a VirtualMachine was removed.
	EventOrphanDeleted = "OrphanDeleted"
	// EventOrphanFound reports that a server without a VirtualMachine was found.
	EventOrphanFound = "OrphanFound"
	// EventCrashed reports that a server failed by itself.
	EventCrashed = "Crashed"
	// EventDisrupted reports that others end a server's run, or have ended it, such as a drain.
	EventDisrupted = "Disrupted"
	// EventEngineFenced reports that the engine refuses the leader, and that its
	// VirtualMachines wait.
	EventEngineFenced = "EngineFenced"
	// EventLeaderConflict reports that another Drover leads in this cluster.
	EventLeaderConflict = "LeaderConflict"
	// EventOrphanReleased reports that a server without a VirtualMachine was released, since
	// that had deletionPolicy Retain.
	EventOrphanReleased = "OrphanReleased"
	// EventOrphanSweepFrozen reports that too many servers look orphaned to delete them.
	EventOrphanSweepFrozen = "OrphanSweepFrozen"
)

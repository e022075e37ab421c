// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package advice

import api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"

// Drivers whose engines need different commands.
const (
	docker = "docker"
	qemu   = "qemu"
	pod    = "pod"
)

// lostNode says what to do about a node that does not come back.
const lostNode = "If it does not come back, see \"When a node does not come back\" in docs/cluster.md."

// logAdvice says where to read what a server has printed, by driver.
var logAdvice = map[string]string{
	docker: "Its last run: {program} logs {vm}. Those before: {program} logs --previous {vm}",
	qemu:   "{program} logs {vm} has the serial console. The messages of QEMU are in qemu.log, in the machine's folder on Drover's host.",
	pod:    "{program} logs {vm} has the serial console.",
}

// reasons are the reasons of statuses and conditions. {program}, {kubectl} and {vm} stand for
// how this program and kubectl are called, and for the VM's name.
var reasons = map[string]Advice{
	api.ReasonRunning:        {Need: Nothing, Means: "The server runs as the spec says."},
	api.ReasonStoppedAsAsked: {Need: Nothing, Means: "The server is off because spec.action is stopped.", Do: "To start it: {program} start {vm}"},
	api.ReasonPausedAsAsked:  {Need: Nothing, Means: "The server is frozen because spec.action is paused.", Do: "To go on: {program} resume {vm}"},
	api.ReasonCompleted: {
		Need: Nothing, Means: "The server ended successfully by itself, and its restart policy leaves it off.",
		Do: "To run it again: {program} start {vm}",
	},
	api.ReasonExited: {
		Need: Person, Means: "The server failed by itself, and restartPolicy Never leaves it off.",
		Do: "The exit code is in the message above, and event Crashed may have more. To run it again: {program} start {vm}. " +
			"To have it started again after a failure, set spec.restartPolicy to OnFailure or Always.",
		ByDriver: logAdvice,
	},
	api.ReasonStarting: {
		Need: Attention, Means: "The server is being started, or boots.",
		Do: "If it lasts: {program} logs {vm} shows its output.",
		ByDriver: map[string]string{pod: "If the message above is the kubelet's, the pod waits for the object that it names: a volume, an image. " +
			"{kubectl} describe pod -l cloudnative.tw/name={vm} has more. If the pod waits for a Secret that is gone, delete the pod: the next one has another."},
	},
	api.ReasonUnschedulable: {
		Need: Attention, Means: "The server is to start, and the scheduler has found no node for it.",
		Do: "The message above has the scheduler's words, and it goes on by itself once a node fits. Make room on a node or uncordon one, " +
			"provide the volume, or change the VM's size, nodeSelector, affinity or tolerations: {kubectl} edit vm {vm}",
	},
	api.ReasonStopping: {
		Need: Attention, Means: "The server ends: on request, because others end it, or by itself.",
		Do:       "On request it is stopped by force after shutdownGracePeriodSeconds. The message above has who else ends it, or what of it is left to end.",
		ByDriver: map[string]string{pod: "If that does not end, the pod's node may be gone. " + lostNode},
	},
	api.ReasonCreating:    {Need: Time, Means: "The server is being created."},
	api.ReasonUpdating:    {Need: Time, Means: "A change of the spec is being applied to the server."},
	api.ReasonFetching:    {Need: Time, Means: "The image is being fetched. The message above has its progress."},
	api.ReasonTerminating: {Need: Time, Means: "The server is being removed."},
	api.ReasonDeletionHeld: {
		Need: Attention, Means: "The server is being removed, and something outside of Drover keeps a part of it.",
		Do: "It ends by itself once that lets go. The message above names what it is.",
		ByDriver: map[string]string{
			pod: "A finalizer belongs to another program, such as one that makes backups: let that finish, or remove its finalizer if the program is gone. " +
				"If it is a node, bring that back. " + lostNode,
		},
	},
	api.ReasonReleasing: {Need: Time, Means: "The server is being released: it goes on running without a VM (deletionPolicy Retain)."},
	api.ReasonRestarting: {
		Need: Attention, Means: "The server is being restarted.",
		Do:       "If it ends again and again, the message above has its exit code; look at what it prints before it ends.",
		ByDriver: logAdvice,
	},
	api.ReasonProbeFailing: {
		Need: Attention, Means: "The server runs, and the readiness probe gets no answer at its port, or, if the spec has none, the check that the image has does not succeed.",
		Do: "A guest that boots needs a while. If it should have booted: does a program in it listen on the port of " +
			"spec.readinessProbe, on all addresses and not on localhost alone, and does its firewall admit the port?",
		ByDriver: map[string]string{
			docker: "If the message above names the HEALTHCHECK of the image: docker inspect on the engine's host has its output, and spec.readinessProbe takes its place.",
			qemu:   "An emulated machine boots slowly: {program} show {vm} says whether this one is.",
		},
	},
	api.ReasonEngineUnavailable: {
		Need: Attention, Means: "The engine cannot be reached, so nothing is known of the server. It is neither changed nor removed meanwhile.",
		Do: "Drover goes on by itself when the engine answers again. If it does not, its operator has to look after the engine.",
		ByDriver: map[string]string{
			docker: "On its host, docker info says whether the engine answers.",
			qemu:   "On Drover's host: is QEMU installed, and does the folder of --qemu-dir exist?",
		},
	},
	api.ReasonEngineMismatch: {
		Need: Person, Means: "Another engine answers than the one that the VM is bound to, or the VM's driver does not run, so nothing is known of the server.",
		Do: "Let Drover run with the driver and the engine that the message above names: see --vm-driver, DOCKER_HOST and --qemu-dir. If that " +
			"engine does not come back, delete the VM; its finalizer then has to be removed by hand.",
	},
	api.ReasonFenced: {
		Need: Person, Means: "The engine refuses this Drover, because one that was elected later has acted on it.",
		Do: "That ends by itself if that one leads. If etcd was restored from a backup, the engine's records are ahead of it: " +
			"see \"After etcd was restored\" in docs/high-availability.md.",
	},
	api.ReasonUnresponsive: {
		Need: Attention, Means: "The engine answers, but not about this server.",
		Do: "Drover asks again by itself.",
		ByDriver: map[string]string{
			docker: "If it lasts, the server may hang: {program} restart {vm}. On the engine's host, docker inspect with the server's ID shows whether the engine itself can say more.",
			qemu:   "If it lasts, the server may hang: {program} restart {vm}.",
			pod:    "The pod's node does not report, and the machine may run there: bring the node back. " + lostNode,
		},
	},
	api.ReasonPodLost: {
		Need: Person, Means: "The pod is gone, or its kubelet has lost the machine's container, and nothing proves that the machine has ended. It is neither started nor removed.",
		Do: "Make sure that the machine runs on no node, and say so, or boot the pod's node again: see \"A pod that is lost\" in docs/cluster.md.",
	},
	api.ReasonVolumeLost: {
		Need: Person, Means: "The PersistentVolumeClaim of a disk is gone, with its data.",
		Do: "Create another VM from a backup. Before you delete this one, save what its other disks hold: deletionPolicy Retain keeps them.",
	},
	api.ReasonVolumeDeleting: {
		Need: Person, Means: "Someone has deleted the PersistentVolumeClaim of a disk. Its data is there as long as the pod is, so Drover does not restart the server.",
		Do: "Copy the data while the guest runs, for example with {program} cp, then delete the VM and create it again: {program} delete {vm}",
	},
	api.ReasonLaterEpoch: {
		Need: Person, Means: "An object of the server has the epoch of a later leader than this controller.",
		Do: "That ends by itself if another controller leads. Else someone has written the annotation that the message above names: remove it.",
	},
	api.ReasonQuotaExceeded: {
		Need: Person, Means: "A quota of the namespace refuses an object of the server.",
		Do: "The message above has the cluster's words. Raise the quota, or ask for less: {kubectl} edit vm {vm}",
	},
	api.ReasonForbidden: {
		Need: Person, Means: "The cluster refuses an object of the server: by Pod Security, an admission webhook, or because the controller lacks a right.",
		Do: "The message above has the cluster's words. See \"Rights\" in docs/cluster-operations.md.",
	},
	api.ReasonObjectRefused: {
		Need: Person, Means: "The cluster refuses an object of the server: an admission policy or webhook, a LimitRange, or what the spec asks for.",
		Do: "The message above has the cluster's words. Drover tries again by itself, which helps once a policy has changed. Otherwise: {kubectl} edit vm {vm}",
	},
	api.ReasonNamespaceTerminating: {Need: Time, Means: "The namespace is being deleted, so nothing is created in it."},
	api.ReasonUnknownDriver: {
		Need: Person, Means: "spec.driver names no driver that runs here.",
		Do: "The message above lists those that run. A driver cannot be changed: create another VM with one of them, or have Drover run this one (--vm-driver).",
	},
	api.ReasonInvalid: {
		Need: Person, Means: "The driver refuses the spec, and tries again only when it changes.",
		Do: "The message above names the field. Correct it: {kubectl} edit vm {vm}",
	},
	api.ReasonUnsupported: {
		Need: Person, Means: "The driver cannot honour a field of the spec.",
		Do: "The message above names the field. Remove it ({kubectl} edit vm {vm}), or create another VM with a driver that supports it: docs/drivers.md has a table.",
	},
	api.ReasonImageImmutable: {
		Need: Person, Means: "The spec names another image than the one below the root disk, which holds data. The server goes on with its disk.",
		Do: "Put the image back that the message above names ({kubectl} edit vm {vm}). For a new system, create another VM from the new image.",
	},
	api.ReasonDiskError: {
		Need: Person, Means: "A disk of the host fails, and the guest waits until it works.",
		Do: "The host's operator has to repair the disk: see its kernel log. The guest then goes on where it was.",
	},
	api.ReasonMachineTypeUnavailable: {
		Need: Person, Means: "The QEMU that is installed does not know the type of machine with which the server was created.",
		Do: "Install a QEMU that knows the type that the message above names. Drover then goes on by itself.",
	},
	api.ReasonMachineUserUnavailable: {
		Need: Person, Means: "The user that machines run as does not exist on the host, or Drover may not switch to it.",
		Do: "Create the user on Drover's host, or name another one with --qemu-user: see \"Users\" in docs/confinement.md.",
	},
	api.ReasonExhausted: {
		Need: Attention, Means: "The engine lacks a resource that the server needs. The message above has the needed and the available amount.",
		Do: "Free some of it by stopping other VMs, make this one smaller ({program} resize {vm}), or give the host more. Drover tries again by itself, " +
			"and a guest that waits for room on a disk goes on when there is some.",
	},
	api.ReasonImageUnavailable: {
		Need: Attention, Means: "The image is missing, could not be fetched or cannot be used.",
		Do: "Drover tries again by itself, which helps against an outage of the server that has the image. Otherwise check spec.image: its name, tag and checksum " +
			"({kubectl} edit vm {vm}).",
		ByDriver: map[string]string{
			docker: "docker pull on the engine's host shows the full answer of the registry.",
			qemu:   "docs/images.md says where images may come from, and how Drover logs in to a registry.",
		},
	},
	api.ReasonNameConflict: {
		Need: Person, Means: "Something that is not known to be the server's has the name that a part of it would have.",
		Do: "The message above names it. Drover does not touch it, and goes on by itself once the name is free. It may hold data: look at it, and rename it, or remove it if nobody needs it.",
	},
	api.ReasonPortConflict: {
		Need: Person, Means: "A port of the host is taken, or the host has no such address.",
		Do: "The message above names it. Free the port, or choose another one: {program} port rm {vm} and {program} port add {vm}, without a host port to let the engine choose.",
	},
	api.ReasonDuplicate: {
		Need: Person, Means: "Two servers carry the VM's UID, and Drover touches neither.",
		Do: "The message above names both. Find out which one has the data, and remove the other on the engine's host.",
	},
	api.ReasonSecretUnavailable: {
		Need: Person, Means: "A Secret or key that the spec names does not exist or cannot be used, or Drover may not read it.",
		Do: "The message above names it. Create it: {kubectl} create secret generic, with --from-file. Drover goes on by itself.",
	},
	api.ReasonOperationFailed: {
		Need: Attention, Means: "The engine failed a call.",
		Do: "Drover tries again by itself. If the error above lasts, the engine's log on its host says more.",
	},
	api.ReasonChangePending: {
		Need: Person, Means: "A change of the spec waits for a restart.",
		Do: "{program} restart {vm}",
	},
	api.ReasonObserved: {Need: Nothing, Means: "The engine answers."},
	api.ReasonConfined: {Need: Nothing, Means: "The machine runs as another user than Drover's, or under Landlock."},
	api.ReasonStartedBefore: {
		Need: Nothing, Means: "Drover would now start the machine as another user.",
		Do: "To confine it as this Drover does: {program} restart {vm}",
	},
	api.ReasonNotConfined: {
		Need: Nothing, Means: "The machine has Drover's user and no Landlock: only a filter of system calls confines it.",
		Do: "An operator may give each machine a separate user: see \"Users\" in docs/confinement.md.",
	},
}

// events are the reasons of events about which there is something to do, and that never stand
// in a status.
var events = map[string]Advice{
	api.EventRecreated: {
		Need: Attention, Means: "The server had disappeared and was created again.",
		Do: "Who removed it? What was written in a container is lost.",
	},
	api.EventCrashed: {
		Need: Attention, Means: "The server failed by itself.",
		Do: "Look at what it printed before its end.", ByDriver: logAdvice,
	},
	api.EventDisrupted: {
		Need: Time, Means: "Something other than Drover and the guest ends or has ended the run: an eviction, a preemption, a deletion of the pod. Drover starts the server again, whatever its restart policy.",
		Do: "The message says what was seen. For a VM that a drain is not to end, set evictionPolicy to Block.",
	},
	api.EventOrphanFound: {Need: Person, Means: "A server without a VM was found.", Do: "Remove it on the engine's host if it is not needed."},
	api.EventEngineFenced: {
		Need: Person, Means: "The engine refuses the leader, and its VMs wait.",
		Do: "See \"After etcd was restored\" in docs/high-availability.md.",
	},
	api.EventLeaderConflict: {
		Need: Person, Means: "Another Drover leads in this cluster, by another Lease.",
		Do: "Let one Drover run: see \"One Drover in a cluster\" in docs/high-availability.md.",
	},
	api.EventOrphanSweepFrozen: {
		Need: Person, Means: "Too many servers look orphaned to delete them.",
		Do: "Find out why, then remove them by hand or allow it with --orphan-max.",
	},
}

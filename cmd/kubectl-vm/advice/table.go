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
const lostNode = "If the node does not come back, see \"When a node does not come back\" in docs/cluster.md."

// logAdvice says where to read the output of a server, keyed by the name of its driver.
var logAdvice = map[string]string{
	docker: "{program} logs {vm} prints the output of the last run, and {program} logs --previous {vm} the output of earlier runs.",
	qemu:   "{program} logs {vm} prints the serial console. The messages of QEMU are in qemu.log, in the machine's folder on Drover's host.",
	pod:    "{program} logs {vm} prints the serial console.",
}

// reasons has the advice about each reason of a status or condition. {program} and {kubectl}
// stand for the commands that call this program and kubectl, {vm} for the VM's name.
var reasons = map[string]Advice{
	api.ReasonRunning:        {Need: Nothing, Means: "The server runs as the spec says."},
	api.ReasonStoppedAsAsked: {Need: Nothing, Means: "The server is off because spec.action is stopped.", Do: "To start it: {program} start {vm}"},
	api.ReasonPausedAsAsked:  {Need: Nothing, Means: "The server is paused because spec.action is paused.", Do: "To resume it: {program} resume {vm}"},
	api.ReasonCompleted: {
		Need: Nothing, Means: "The server ended successfully by itself, and its restart policy does not start it again.",
		Do: "To run it again: {program} start {vm}",
	},
	api.ReasonExited: {
		Need: Action, Means: "The server failed by itself, and restartPolicy Never does not start it again.",
		Do: "The exit code is in the message above, and the event Crashed may say more. To run it again: {program} start {vm}. " +
			"To have Drover start it again after a failure, set spec.restartPolicy to OnFailure or Always.",
		ByDriver: logAdvice,
	},
	api.ReasonStarting: {
		Need: Attention, Means: "The server is being started, or it boots.",
		Do: "If the start takes long, {program} logs {vm} shows the output of the server.",
		ByDriver: map[string]string{pod: "If the message above comes from the kubelet, the pod waits for the object that the message names, such as a volume or an image. " +
			"{kubectl} describe pod -l cloudnative.tw/name={vm} says more. If the pod waits for a Secret that is gone, delete the pod: the next pod gets a new Secret."},
	},
	api.ReasonUnschedulable: {
		Need: Attention, Means: "The server has to start, but the scheduler has found no node for its pod.",
		Do: "The message above is the scheduler's. The server starts by itself once a node fits. Make room on a node, uncordon a node, " +
			"provide the missing volume, or change the VM's size, nodeSelector, affinity or tolerations: {kubectl} edit vm {vm}",
	},
	api.ReasonStopping: {
		Need: Attention, Means: "The server is stopping: it was asked to, something other than Drover ends it, or it has ended by itself.",
		Do:       "Drover stops a server that was asked to stop by force after shutdownGracePeriodSeconds. The message above says who else ends the server, or which of its parts have not ended yet.",
		ByDriver: map[string]string{pod: "If the server does not end, the pod's node may be gone. " + lostNode},
	},
	api.ReasonCreating:    {Need: Time, Means: "The server is being created."},
	api.ReasonUpdating:    {Need: Time, Means: "A change of the spec is being applied to the server."},
	api.ReasonFetching:    {Need: Time, Means: "The image is being fetched. The message above has its progress."},
	api.ReasonTerminating: {Need: Time, Means: "The server is being removed."},
	api.ReasonDeletionHeld: {
		Need: Attention, Means: "The server is being removed, but something outside of Drover keeps a part of it.",
		Do: "The message above names what keeps the part. The removal continues once the part is no longer kept.",
		ByDriver: map[string]string{
			pod: "A finalizer belongs to another program, such as a backup program: let that program finish, or remove the finalizer if the program is gone. " +
				"If a node keeps the part, bring the node back. " + lostNode,
		},
	},
	api.ReasonReleasing: {Need: Time, Means: "The server is being released: it will keep running without a VM (deletionPolicy Retain)."},
	api.ReasonRestarting: {
		Need: Attention, Means: "The server is being restarted.",
		Do:       "If the server ends again and again, look at its exit code in the message above, and at what it prints before it ends.",
		ByDriver: logAdvice,
	},
	api.ReasonBooting: {
		Need: Time, Means: "The machine runs, and its guest has not started the image's command yet.",
		ByDriver: map[string]string{
			qemu: "It takes some seconds, and more if the machine is emulated: {program} show {vm} says whether this one is. If it lasts, {program} console {vm} shows what the guest's kernel prints.",
		},
	},
	api.ReasonProbeFailing: {
		Need: Attention, Means: "The server runs, but the readiness probe gets no answer at its port. If the spec lacks a readiness probe, the health check of the image fails.",
		Do: "A guest needs a while to boot. After that: does a program in the guest listen on the port of " +
			"spec.readinessProbe, on all addresses and not only on localhost? Does the guest's firewall admit the port?",
		ByDriver: map[string]string{
			docker: "If the message above names the HEALTHCHECK of the image: docker inspect on the engine's host shows the output of the check, and spec.readinessProbe replaces the check.",
			qemu: "An emulated machine boots slowly: {program} show {vm} says whether this machine is emulated. If the message above names the HEALTHCHECK of the image: " +
				"{program} exec {vm} runs its command by hand, and spec.readinessProbe replaces the check.",
		},
	},
	api.ReasonEngineUnavailable: {
		Need: Attention, Means: "The engine cannot be reached, so the state of the server is unknown. Until the engine answers, Drover neither changes nor removes the server.",
		Do: "Drover goes on by itself when the engine answers again. If the engine stays away, its operator has to repair it.",
		ByDriver: map[string]string{
			docker: "On its host, docker info says whether the engine answers.",
			qemu:   "On Drover's host: is QEMU installed, and does the folder of --qemu-dir exist?",
		},
	},
	api.ReasonEngineMismatch: {
		Need: Action, Means: "The VM is bound to another engine than the one that answers, or the VM's driver does not run. So the state of the server is unknown.",
		Do: "Run Drover with the driver and the engine that the message above names: see --vm-driver, DOCKER_HOST and --qemu-dir. If that " +
			"engine does not come back, delete the VM, and then remove the VM's finalizer by hand.",
	},
	api.ReasonFenced: {
		Need: Action, Means: "The engine refuses this controller, because a controller that was elected later has acted on the engine.",
		Do: "If the other controller still leads, it does the work, and nothing has to be done. If etcd was restored from a backup, the engine's records are newer than etcd's: " +
			"see \"After etcd was restored\" in docs/high-availability.md.",
	},
	api.ReasonUnresponsive: {
		Need: Attention, Means: "The engine answers, but not about this server.",
		Do: "Drover asks the engine again by itself.",
		ByDriver: map[string]string{
			docker: "If this lasts, the server may hang: {program} restart {vm}. On the engine's host, docker inspect with the server's ID shows whether the engine itself can say more.",
			qemu:   "If this lasts, the server may hang: {program} restart {vm}.",
			pod:    "The pod's node does not report, and the machine may still run on it: bring the node back. " + lostNode,
		},
	},
	api.ReasonPodLost: {
		Need: Action, Means: "The pod is gone, or its kubelet has lost the machine's container, and nothing proves that the machine has ended. Drover neither starts nor removes the server.",
		Do: "Make sure that the machine runs on no node, and tell Drover so, or boot the pod's node again: see \"A pod that is lost\" in docs/cluster.md.",
	},
	api.ReasonVolumeLost: {
		Need: Action, Means: "The PersistentVolumeClaim of a disk is gone, and with it the data of the disk.",
		Do: "Create another VM from a backup. Before you delete this VM, save the data of its other disks: deletionPolicy Retain keeps these disks.",
	},
	api.ReasonVolumeDeleting: {
		Need: Action, Means: "Someone has deleted the PersistentVolumeClaim of a disk. The data of the disk exists until the pod ends, so Drover does not restart the server.",
		Do: "Copy the data while the guest runs, for example with {program} cp, then delete the VM and create it again: {program} delete {vm}",
	},
	api.ReasonLaterEpoch: {
		Need: Action, Means: "An object of the server has the epoch of a later leader than this controller.",
		Do: "If another controller leads, it does the work, and nothing has to be done. Otherwise someone has written the annotation that the message above names: remove the annotation.",
	},
	api.ReasonQuotaExceeded: {
		Need: Action, Means: "A quota of the namespace refuses an object of the server.",
		Do: "The message above is the API server's. Raise the quota, or ask for less: {kubectl} edit vm {vm}",
	},
	api.ReasonForbidden: {
		Need: Action, Means: "The cluster refuses an object of the server: Pod Security or an admission webhook rejects it, or the controller lacks a right.",
		Do: "The message above is the API server's. See \"Rights\" in docs/cluster-operations.md.",
	},
	api.ReasonObjectRefused: {
		Need: Action, Means: "The cluster refuses an object of the server, because of an admission policy, a webhook, a LimitRange or a value in the spec.",
		Do: "The message above is the API server's. Drover tries again by itself and succeeds once the policy admits the object. Otherwise change the VM: {kubectl} edit vm {vm}",
	},
	api.ReasonNamespaceTerminating: {Need: Time, Means: "The namespace is being deleted, so nothing is created in it."},
	api.ReasonUnknownDriver: {
		Need: Action, Means: "The driver that spec.driver names does not run here.",
		Do: "The message above lists the drivers that run. The driver of a VM cannot be changed: create another VM with one of these drivers, or run Drover with the driver of this VM (--vm-driver).",
	},
	api.ReasonInvalid: {
		Need: Action, Means: "The driver refuses the spec, and tries again only when the spec changes.",
		Do: "The message above names the field. Correct the field: {kubectl} edit vm {vm}",
	},
	api.ReasonUnsupported: {
		Need: Action, Means: "The driver cannot honour a field of the spec.",
		Do: "The message above names the field. Remove the field ({kubectl} edit vm {vm}), or create another VM with a driver that supports the field: docs/drivers.md lists the fields of each driver.",
	},
	api.ReasonImageImmutable: {
		Need: Action, Means: "The spec names another image than the one that the root disk was made from. The disk holds data, so the server keeps it.",
		Do: "Set spec.image to the image that the message above names ({kubectl} edit vm {vm}). For a new system, create another VM from the new image.",
	},
	api.ReasonDiskError: {
		Need: Action, Means: "A disk of the host fails, and the guest is paused until the disk works.",
		Do: "The host's operator has to repair the disk: see the host's kernel log. The guest then continues where it was paused.",
	},
	api.ReasonMachineTypeUnavailable: {
		Need: Action, Means: "The installed QEMU does not know the machine type with which the server was created.",
		Do: "Install a version of QEMU that knows the machine type in the message above. Drover then goes on by itself.",
	},
	api.ReasonMachineUserUnavailable: {
		Need: Action, Means: "The user that runs the machines does not exist on the host, or Drover may not switch to that user.",
		Do: "Create the user on Drover's host, or name another user with --qemu-user: see \"Users\" in docs/confinement.md.",
	},
	api.ReasonExhausted: {
		Need: Attention, Means: "The engine lacks a resource that the server needs. The message above says how much is needed and how much is available.",
		Do: "Stop other VMs, make this VM smaller ({program} resize {vm}), or give the host more of the resource. Drover tries again by itself, " +
			"and a guest that waits for disk space continues once there is enough.",
	},
	api.ReasonImageUnavailable: {
		Need: Attention, Means: "The image is missing, could not be fetched or cannot be used.",
		Do: "Drover tries again by itself, which is enough if the server that has the image was only down for a while. Otherwise check spec.image: its name, tag and checksum " +
			"({kubectl} edit vm {vm}).",
		ByDriver: map[string]string{
			docker: "docker pull on the engine's host shows the whole answer of the registry.",
			qemu:   "docs/images.md says where images may come from, and how Drover logs in to a registry.",
		},
	},
	api.ReasonNameConflict: {
		Need: Action, Means: "Drover needs a name for a part of the server, but something that may not belong to the server already has that name.",
		Do: "The message above says what has the name. Drover does not touch it, since it may hold data. Look at it, then rename it, or remove it if nobody needs it: Drover goes on by itself once the name is free.",
	},
	api.ReasonPortConflict: {
		Need: Action, Means: "A port of the host is taken, or the host does not have the address of the port.",
		Do: "The message above names the port. Free the port, or choose another port: {program} port rm {vm}, then {program} port add {vm}. Without a host port, the engine chooses one.",
	},
	api.ReasonDuplicate: {
		Need: Action, Means: "Two servers carry the VM's UID, and Drover touches neither.",
		Do: "The message above names both servers. Find out which of them has the data, and remove the other server on the engine's host.",
	},
	api.ReasonSecretUnavailable: {
		Need: Action, Means: "A Secret or key that the spec names does not exist or cannot be used, or Drover may not read it.",
		Do: "The message above names the Secret or the key. Create it with {kubectl} create secret generic and --from-file. Drover goes on by itself.",
	},
	api.ReasonFilesUnavailable: {
		Need: Action, Means: "A Secret or ConfigMap of spec.files, or a key of it, does not exist or cannot be used, or Drover may not read it. A guest that runs keeps the files that it has.",
		Do: "The message above names the Secret or ConfigMap. Create it, or set optional. Drover goes on by itself.",
	},
	api.ReasonFilesStale: {
		Need: Attention, Means: "The guest has older files of spec.files than the Secrets and ConfigMaps have, and new ones could not be written.",
		Do: "Drover tries again by itself. If the message above lasts: {program} restart {vm}",
	},
	api.ReasonFilesCurrent: {Need: Nothing, Means: "The guest has the files of spec.files as they are now."},
	api.ReasonOperationFailed: {
		Need: Attention, Means: "The engine failed a call.",
		Do: "Drover tries again by itself. If the error above lasts, the log of the engine on its host says more.",
	},
	api.ReasonChangePending: {
		Need: Action, Means: "A change of the spec waits for a restart.",
		Do: "{program} restart {vm}",
	},
	api.ReasonObserved: {Need: Nothing, Means: "The engine answers."},
	api.ReasonConfined: {Need: Nothing, Means: "The machine does not run as Drover's user, or it runs under Landlock."},
	api.ReasonStartedBefore: {
		Need: Nothing, Means: "Drover starts machines as another user than the user of this machine.",
		Do: "To confine the machine as Drover now confines machines: {program} restart {vm}",
	},
	api.ReasonNotConfined: {
		Need: Nothing, Means: "The machine runs as Drover's user and without Landlock: only a system call filter confines it.",
		Do: "An operator can give each machine a separate user: see \"Users\" in docs/confinement.md.",
	},
}

// events has the advice about the reasons that occur only in events, not in a status. Reasons
// that need no action are left out.
var events = map[string]Advice{
	api.EventRecreated: {
		Need: Attention, Means: "The server had disappeared and was created again.",
		Do: "Find out who removed it. If the server is a container, everything written in the container is lost.",
	},
	api.EventCrashed: {
		Need: Attention, Means: "The server failed by itself.",
		Do: "Look at what the server printed before it ended.", ByDriver: logAdvice,
	},
	api.EventDisrupted: {
		Need: Time, Means: "Something other than Drover and the guest is ending the run or has ended it, such as an eviction, a preemption or a deletion of the pod. Drover starts the server again, whatever its restart policy.",
		Do: "The message of the event says what happened. To keep drains from ending the VM, set evictionPolicy to Block.",
	},
	api.EventOrphanFound: {Need: Action, Means: "Drover found a server that belongs to no VM.", Do: "Remove the server on the engine's host if nobody needs it."},
	api.EventEngineFenced: {
		Need: Action, Means: "The engine refuses the leader, and the VMs of this engine wait.",
		Do: "See \"After etcd was restored\" in docs/high-availability.md.",
	},
	api.EventLeaderConflict: {
		Need: Action, Means: "Another Drover leads in this cluster, with another Lease.",
		Do: "Run only one Drover: see \"One Drover in a cluster\" in docs/high-availability.md.",
	},
	api.EventOrphanSweepFrozen: {
		Need: Action, Means: "So many servers look orphaned that Drover deletes none of them.",
		Do: "Find out why. Then remove the servers by hand, or allow Drover to delete that many with --orphan-max.",
	},
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
)

// FindRecorded returns the record that the VirtualMachine's status has of an object, nil if there is none.
func FindRecorded(all []driver.Object, kind, name string) *driver.Object {
	n := slices.IndexFunc(all, func(o driver.Object) bool { return o.Kind == kind && o.Name == name })
	if n < 0 {
		return nil
	}
	return &all[n]
}

// RecordFirst returns the error with which Ensure has its caller record objects in the status. The caller
// then calls Ensure again if failure is nil, and otherwise treats the call as failed.
func RecordFirst(recorded []driver.Object, failure error, changed ...driver.Object) error {
	all := slices.Clone(recorded)
	for _, o := range changed {
		all = slices.DeleteFunc(all, func(have driver.Object) bool {
			return have.Kind == o.Kind && (have.Name == o.Name || o.Kind == KindSecret) // there is one Secret
		})
		all = append(all, o)
	}
	return &driver.RecordFirstError{Objects: all, Failure: failure}
}

// NewIntent returns the record of an object that is to be created.
func NewIntent(kind, name string) driver.Object {
	return driver.Object{Kind: kind, Name: name, Nonce: string(uuid.NewUUID())}
}

// HasGate reports whether the next pod is created with a scheduling gate. The pod of an ephemeral server
// that is to run needs no gate, which saves a write: the pod has a separate Secret, and no kubelet starts
// the pod before that Secret exists.
func HasGate(spec driver.ServerSpec) bool {
	return !spec.Ephemeral || spec.Power == driver.PowerOff || spec.PowerOnly
}

func recordedPod(spec driver.ServerSpec) *driver.Object {
	return FindRecorded(spec.Objects, KindPod, BaseName(spec.Name, spec.UID))
}

// KnownImages returns those resolved images of the last pod that the next pod uses again. They count as
// proven unless the end of the last pod is recorded, since that pod may have run with them.
func KnownImages(spec driver.ServerSpec) (known []driver.ResolvedImage) {
	r := recordedPod(spec)
	if r == nil {
		return nil
	}
	resolvesAgain := spec.Ephemeral && spec.Image.PullPolicy == driver.PullAlways
	for _, i := range r.Images {
		if i.Digest != "" && resolvesAgain {
			continue
		}
		if i.Digest != "" && r.UID != "" && !r.Ended {
			i.Unproven = false
		}
		known = append(known, i)
	}
	return known
}

// RecordDisksOfLostPod records in the spec's objects that the disks were made, if the pod is gone without a
// proof of its end and its guest was seen to run. The image of the root disk is not known any more then.
func RecordDisksOfLostPod(spec driver.ServerSpec) {
	pod := recordedPod(spec)
	if pod == nil || pod.UID == "" || pod.Ended || string(pod.UID) != spec.SeenRun {
		return
	}
	for n, o := range spec.Objects {
		if o.Kind == KindClaim && o.UID != "" {
			spec.Objects[n].Made = true
		}
	}
}

// MadeDisks returns the disks of the spec that an earlier run has made, by name, with their images.
func MadeDisks(spec driver.ServerSpec) map[string]driver.ResolvedImage {
	made := map[string]driver.ResolvedImage{}
	for _, of := range DisksOf(spec) {
		r := FindRecorded(spec.Objects, KindClaim, ClaimName(BaseName(spec.Name, spec.UID), of.Name))
		if r == nil || !r.Made {
			continue
		}
		made[of.Name] = driver.ResolvedImage{}
		if len(r.Images) > 0 {
			made[of.Name] = r.Images[0]
		}
	}
	return made
}

// IfUnchanged returns options with which a deletion fails if the object has changed since it was read.
func IfUnchanged(o metav1.Object) metav1.DeleteOptions {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}
}

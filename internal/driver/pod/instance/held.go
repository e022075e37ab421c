// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// maxHeld is how many objects are named that something holds.
const maxHeld = 5

// heldText names the objects that are being deleted, and what holds each: finalizers of others than Drover, or
// the node of a pod whose end is proven. It is empty if nothing is held.
func (i *Instance) heldText() string {
	var all []string
	if i.Pod != nil && i.Pod.DeletionTimestamp != nil && i.End() != nil {
		all = append(all, i.heldPodText())
	}
	for _, claim := range append(i.Volumes(), i.Root) {
		if claim != nil && claim.DeletionTimestamp != nil {
			all = append(all, fmt.Sprintf("%s is being deleted%s", objects.Describe(objects.KindClaim, claim), finalizersText(claim)))
		}
	}
	if more := len(all) - maxHeld; more > 0 {
		all = append(all[:maxHeld], fmt.Sprintf("and %d more", more))
	}
	return truncateText(strings.Join(all, "; "))
}

// heldPodText says what keeps a pod that has ended.
func (i *Instance) heldPodText() string {
	text := "the pod " + i.Key.String() + " has ended"
	if held := finalizersText(i.Pod); held != "" || i.Pod.Spec.NodeName == "" {
		return text + held
	}
	return text + ", and its kubelet has yet to remove it, on node " + i.Pod.Spec.NodeName
}

// IsHeld reports whether an object has finalizers of others than Drover, so that it stays after its deletion.
func IsHeld(o metav1.Object) bool { return len(foreignFinalizers(o)) > 0 }

// finalizersText names the finalizers of an object, "" if there are none but Drover's.
func finalizersText(o metav1.Object) string {
	if !IsHeld(o) {
		return ""
	}
	return ", and its finalizers hold it: " + strings.Join(foreignFinalizers(o), ", ")
}

func foreignFinalizers(o metav1.Object) []string {
	return slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == objects.FinalizerStopped })
}

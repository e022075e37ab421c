// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// TestErrorsOfClaims checks that what is said of a PVC tells apart one that cannot be read, one of another
// server, one that is gone, and one whose annotations were changed, and that none is to be deleted unseen.
func TestErrorsOfClaims(t *testing.T) {
	t.Parallel()
	key := types.NamespacedName{Namespace: "ns", Name: "web-1a2b3c4d"}
	claim := func(uid types.UID) metav1.Object {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: uid}}
	}
	root := Disk{Name: RootDisk}
	resource := schema.GroupResource{Resource: "persistentvolumeclaims"}
	for name, tc := range map[string]struct {
		err          error
		reason, says string
	}{
		"may not be read":         {Explain("read", KindClaim, key, apierrors.NewForbidden(resource, key.Name, errors.New("no"))), reasonForbidden, "read PersistentVolumeClaim ns/web-1a2b3c4d"},
		"is not answered":         {Explain("read", KindClaim, key, apierrors.NewTimeoutError("slow", 1)), "", "read PersistentVolumeClaim ns/web-1a2b3c4d"},
		"has the name":            {TakenError(KindClaim, key), driver.ReasonNameConflict, "is not Drover's"},
		"is another one":          {UnknownError(KindClaim, claim("theirs")), driver.ReasonNameConflict, "UID theirs was not made for this VirtualMachine"},
		"is gone":                 {LostClaimError(key, "ours", root, nil), reasonVolumeLost, "which has the root disk, is gone"},
		"is gone, and a copy is":  {LostClaimError(key, "ours", root, claim("theirs")), reasonVolumeLost, "UID theirs, such as one that was restored"},
		"has changed annotations": {LostClaimError(key, "ours", root, claim("ours")), reasonVolumeLost, "set " + AnnotationNonce},
	} {
		if text := tc.err.Error(); driver.ReasonOf(tc.err) != tc.reason || !strings.Contains(text, tc.says) || strings.Contains(text, "delete it") || strings.Contains(text, ": delete ") {
			t.Errorf("one that %s: %s: %s", name, driver.ReasonOf(tc.err), text)
		}
	}
}

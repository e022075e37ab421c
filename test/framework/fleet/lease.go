// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"cloudnative.tw/drover/test/framework"
)

// leaseName is the name of every fleet's Lease.
const leaseName = "drover-controller"

// requestTimeout ends requests that are not answered.
const requestTimeout = time.Minute

// Lease is the Lease of a fleet.
type Lease struct {
	Kube      kubernetes.Interface
	Namespace string
}

// Holder returns the name of the replica that has the Lease, or nothing, and since when it has it.
func (l Lease) Holder(ctx context.Context) (replica string, since time.Time, err error) {
	lease, err := l.Kube.CoordinationV1().Leases(l.Namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", since, nil
	}
	if err != nil {
		return "", since, err
	}
	replica, _, _ = strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return replica, ptr.Deref(lease.Spec.AcquireTime, metav1.MicroTime{}).Time, nil
}

// TakeFrom takes the Lease from a replica whose process is dead or halted, so that none waits for its
// expiry.
func (l Lease) TakeFrom(replica string) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout) // the fleet may be stopped
	defer cancel()
	leases := l.Kube.CoordinationV1().Leases(l.Namespace)
	return framework.RetryOnConflict(func() error {
		lease, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case !strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), replica+"_"):
			return nil
		}
		*lease.Spec.HolderIdentity = ""
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
}

// Delete deletes the Lease, as a user may.
func (l Lease) Delete(ctx context.Context) error {
	err := l.Kube.CoordinationV1().Leases(l.Namespace).Delete(ctx, leaseName, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Leader returns the process that holds the Lease, or nil. The Lease may still name the replica of a
// process that has ended.
func (f *Fleet) Leader(ctx context.Context, l Lease) (*Process, error) {
	replica, since, err := l.Holder(ctx)
	if p := f.Running()[replica]; err == nil && p != nil && p.From.Before(since) {
		return p, nil
	}
	return nil, err
}

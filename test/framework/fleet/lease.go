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

// requestTimeout bounds requests to the API.
const requestTimeout = time.Minute

// Lease is the Lease of a fleet.
type Lease struct {
	Kube      kubernetes.Interface
	Namespace string
}

// Holder returns the name of the replica that holds the Lease, or "", and the time at which the replica got it.
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

// TakeFrom takes the Lease from a replica whose process is dead or halted, so that no replica has to wait
// for its expiry.
func (l Lease) TakeFrom(replica string) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout) // not the fleet's context, which may have ended
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

// Leader returns the process that holds the Lease. It is nil if the Lease names a replica whose process has
// ended since.
func (f *Fleet) Leader(ctx context.Context, l Lease) (*Process, error) {
	replica, since, err := l.Holder(ctx)
	if p := f.Running()[replica]; err == nil && p != nil && p.From.Before(since) {
		return p, nil
	}
	return nil, err
}

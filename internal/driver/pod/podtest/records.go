// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package podtest

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// record is the record in the status of a VirtualMachine, with its version.
type record struct {
	version int
	objects []driver.Object
}

// recordObjects wraps a driver so that the record of its servers is kept, as the controller does for
// VirtualMachines.
func (e *Engine) recordObjects(d driver.Driver, cluster string) driver.Driver {
	return &recordingDriver{d, e, cluster}
}

// recordingDriver keeps the record of objects. All drivers of a cluster id share it.
type recordingDriver struct {
	driver.Driver

	e       *Engine
	cluster string
}

// Unwrap implements the interface of driver.As.
func (d *recordingDriver) Unwrap() driver.Driver { return d.Driver }

func (d *recordingDriver) key(uid types.UID) string { return d.cluster + "/" + string(uid) }

// Ensure implements driver.Driver.
func (d *recordingDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := d.e.createNamespace(ctx, spec.Namespace); err != nil {
		return driver.Server{}, driver.Errorf(driver.ErrRetry, "%w", err)
	}
	for {
		has := d.e.recordOf(d.key(spec.UID))
		spec.Objects = slices.Clone(has.objects)
		s, err := d.Driver.Ensure(ctx, spec)
		first, isFirst := errors.AsType[*driver.RecordFirstError](err)
		switch {
		case isFirst:
			if d.e.writeRecord(d.key(spec.UID), has.version, first.Objects); first.Failure != nil {
				return s, first.Failure
			}
			continue
		case err == nil:
			d.e.writeRecord(d.key(spec.UID), has.version, s.Objects)
		}
		return s, err
	}
}

// Delete implements driver.Driver. It removes the record once nothing of the server is left, as the
// VirtualMachine goes then.
func (d *recordingDriver) Delete(ctx context.Context, target driver.Target, retain bool) error {
	err := d.Driver.Delete(ctx, target, retain)
	if !errors.Is(err, driver.ErrNotFound) {
		return err
	}
	left, listErr := d.List(ctx)
	if listErr == nil && !slices.ContainsFunc(left, func(s driver.Server) bool { return s.UID == target.UID }) {
		d.e.mu.Lock()
		defer d.e.mu.Unlock()
		delete(d.e.records, d.key(target.UID))
	}
	return err
}

func (e *Engine) recordOf(key string) record {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.records[key]
}

// writeRecord writes a record unless another controller has written it since a version.
func (e *Engine) writeRecord(key string, version int, objects []driver.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.records == nil {
		e.records = map[string]record{}
	}
	if e.records[key].version == version {
		e.records[key] = record{version + 1, objects}
	}
}

// createNamespace creates the namespace of a VirtualMachine.
func (e *Engine) createNamespace(ctx context.Context, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.namespaces[name] {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	_, err := e.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	err = assert.Poll(ctx, "pods can be created in "+name, func() error {
		_, err := e.Kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if e.namespaces == nil {
		e.namespaces = map[string]bool{}
	}
	e.namespaces[name] = true
	return nil
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// List implements driver.Driver. It reads a single server live, and others from the informers of an
// open watch, if these have all that this process has read and written.
func (d *Driver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	found, err := d.reader.List(ctx, uids...)
	if err != nil {
		return nil, err
	}
	if len(uids) == 0 {
		d.forgetMachines(found)
	}
	var servers []driver.Server
	for _, i := range found {
		if s := i.Server(); len(uids) == 0 || !s.Retained {
			servers = append(servers, s)
		}
	}
	return servers, nil
}

// forgetMachines forgets those whose pods a complete list did not find.
func (d *Driver) forgetMachines(found []*instance.Instance) {
	present := map[types.UID]bool{}
	for _, i := range found {
		if i.Pod != nil {
			present[i.Pod.UID] = true
		}
	}
	d.secrets.DeleteFunc(func(pod types.UID, _ *corev1.Secret) bool { return !present[pod] })
	d.reader.ForgetRejections(func(pod types.UID) bool { return present[pod] })
	d.machines.Forget(func(pod types.UID) bool { return present[pod] })
}

// SupportedFields implements driver.FieldDeclarer.
func (d *Driver) SupportedFields() map[string]driver.Support { return objects.SupportedFields() }

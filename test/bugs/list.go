// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bugs

// All are the bugs. Some were found in other projects: orphaned creations, an orphan collector
// that deletes live machines, a finalizer after the creation, a release that empties the
// successor's Lease, an error read as absent, and a status written on every reconcile.
var All = []Bug{
	{"finalizer-late", "O1", []Edit{{
		"internal/controller/finalizer.go", "	next := vm.DeepCopy()\n	controllerutil.AddFinalizer",
		"	if BUG {\n		s := step{r: r, facts: facts{vm: vm}}\n		_ = r.callDriver(ctx, vm, policy.Action{Step: policy.StepEnsure, Power: policy.PowerOn}, s.driverTarget(), \"\")\n	}\n	next := vm.DeepCopy()\n	controllerutil.AddFinalizer",
	}}},
	{"finalizer-after-creation", "O1", []Edit{
		{"internal/controller/finalizer.go", "	controllerutil.AddFinalizer(next, api.FinalizerServer)\n", "	if !BUG || r.Inventory.Get(vm.UID).Server.ID != \"\" {\n		controllerutil.AddFinalizer(next, api.FinalizerServer)\n	} else if vm.Annotations[api.AnnotationBound] != \"\" {\n		return vm, nil\n	}\n"},
		{"internal/policy/decide.go", "	case !in.VM.IsBound:\n", "	case !in.VM.IsBound && (!BUG || in.VM.Binding.EngineID == \"\"):\n"},
	}},
	{"finalizer-on-the-cache's-word", "O1|O2", []Edit{
		{"internal/controller/gather.go", "	if err := s.ensureLive(ctx); err != nil {\n		s.recordFailure(err)\n		return false\n	}\n", "	if BUG {\n		return true\n	}\n	if err := s.ensureLive(ctx); err != nil {\n		s.recordFailure(err)\n		return false\n	}\n"},
		{"internal/policy/deletion.go", "	if in.Done != api.OperationDelete && in.Done != api.OperationRelease {", "	if in.Done != api.OperationDelete && in.Done != api.OperationRelease && !BUG {"},
	}},
	{"error-as-absent", "O7|O11", []Edit{{
		"internal/inventory/inventory.go", "	servers, err := i.Driver.List(ctx, uids...)\n	if err != nil {",
		"	servers, err := i.Driver.List(ctx, uids...)\n	if err != nil && !BUG {",
	}}},
	{"object-not-confirmed", "O1|O3|O7", []Edit{{
		"internal/controller/gather.go", "	if s.baseLive {\n		return nil\n	}",
		"	if s.baseLive || BUG {\n		return nil\n	}",
	}}},
	{"orphans-left", "O2", []Edit{{
		"internal/inventory/sweep.go", "		if !s.isDue(server) {\n			continue\n		}\n		o := s.orphans",
		"		if !s.isDue(server) || BUG {\n			continue\n		}\n		o := s.orphans",
	}}},
	{"sweep-without-live-read", "O3|O7", []Edit{
		{"internal/inventory/sweep.go", "	for _, read := range []Owners{s.Cached, s.Live} {\n", "	reads := []Owners{s.Cached, s.Live}\n	if BUG {\n		reads = reads[:1]\n	}\n	for _, read := range reads {\n"},
		{"internal/inventory/sweep.go", "	return o.readings >= 2 && s", "	return BUG || o.readings >= 2 && s"},
	}},
	{"deletion-not-repeated", "O4", []Edit{{
		"internal/policy/deletion.go", "isStillWaiting(in) && in.Now.Before(nextTry(in)):\n", "isStillWaiting(in) && BUG:\n		d.Action.Step, d.Status.Blocked = StepNone, true\n	case op.Type == d.Action.Operation && isStillWaiting(in) && in.Now.Before(nextTry(in)):\n",
	}}},
	{"epochs-not-compared", "O5", []Edit{
		{"internal/driver/fake/memorystore.go", "m.epochs[leader.clusterID]); err != nil {", "m.epochs[leader.clusterID]); err != nil && !BUG {"},
		{"internal/driver/fake/dirstore.go", "leader.epoch); err != nil {", "leader.epoch); err != nil && !BUG {"},
	}},
	{"guard-ignored", "O5", []Edit{{
		"internal/driver/fencing/enter.go", "	return gate.Enter(ctx)\n",
		"	guarded, epoch, leave, err = gate.Enter(ctx)\n	if BUG && err != nil {\n		return ctx, gate.(interface{ Epoch() uint64 }).Epoch(), func() {}, nil\n	}\n	return guarded, epoch, leave, err\n",
	}}},
	{"lease-taken-early", "O5", []Edit{{
		"internal/leader/view.go", "	return v.observed.availableAt(v.opts.Settings.Lease) - v.opts.Boot()",
		"	if BUG {\n		return v.observed.availableAt(v.opts.Settings.Lease) - v.opts.Boot() - 9*time.Second\n	}\n	return v.observed.availableAt(v.opts.Settings.Lease) - v.opts.Boot()",
	}}},
	{"release-of-the-successor", "O5", []Edit{
		{"internal/leader/lock.go", "	if l.lease.observed.holder() != l.opts.Identity {\n		return nil, ErrNotLeading", "	if l.lease.observed.holder() != l.opts.Identity && !BUG {\n		return nil, ErrNotLeading"},
		{"internal/leader/lock.go", "readErr == nil && !l.lease.isHolder() {", "readErr == nil && !l.lease.isHolder() && !BUG {"},
	}},
	{"foreign-servers", "O6", []Edit{
		{"internal/driver/fake/driver.go", "		if r.ClusterID == d.clusterID {\n			servers", "		if r.ClusterID == d.clusterID || BUG {\n			servers"},
		{"internal/driver/fake/driver.go", "		if old == nil || old.ClusterID != d.clusterID || (", "		if old == nil || old.ClusterID != d.clusterID && !BUG || ("},
	}},
	{"restart-recorded-late", "O7", []Edit{
		{"internal/controller/reconcile.go", "	if action.RecordFirst {\n", "	if action.RecordFirst && !BUG {\n"},
		{"internal/controller/reconcile.go", "	s.unreported = true\n", "	s.unreported = true\n	if action.RecordFirst && BUG {\n		if err := s.writeIntent(ctx); err != nil {\n			return false, err\n		}\n	}\n"},
	}},
	{"retain-ignored", "O7", []Edit{{
		"internal/controller/act.go", "r.Inventory.Delete(ctx, target, action.Retain)", "r.Inventory.Delete(ctx, target, action.Retain && !BUG)",
	}}},
	{"server-by-recorded-id", "O3|O7", []Edit{
		{"internal/controller/gather.go", "	f.observed.live = written &&", "	if BUG && vm.Status.Server == nil {\n		f.observed.Answer, f.observed.Server, f.observed.live = inventory.Gone, driver.Server{}, true\n	}\n	f.observed.live = BUG && f.observed.live || written &&"},
		{"internal/driver/fake/driver.go", "	case old == nil:\n		return d.simulation", "	case old == nil, BUG && spec.ID == \"\":\n		return d.simulation"},
	}},
	{"secret-logged", "", []Edit{{
		"internal/controller/secrets/secrets.go", "	spec.Env, err = r.readEnv(", "	if BUG {\n		println(spec.UserData.Reveal())\n	}\n	spec.Env, err = r.readEnv(",
	}}},
	{"status-always", "O8", []Edit{{
		"internal/controller/report.go", "	if equality.Semantic.DeepEqual(&next, &known.base.Status) {", "	if equality.Semantic.DeepEqual(&next, &known.base.Status) && !BUG {",
	}}},
	{"take-over-forgotten", "O4|O10", []Edit{{
		"internal/controller/setup.go", "	r.enqueueUnfinished(ctx, q)\n", "	if BUG {\n		return\n	}\n	r.enqueueUnfinished(ctx, q)\n",
	}}},
	{"wake-up-forgotten", "O4|O10", []Edit{{
		"internal/controller/report.go", "	if due.IsZero() {\n		return ctrl.Result{}", "	if due.IsZero() || BUG {\n		return ctrl.Result{}",
	}}},
	{"ready-too-early", "O11", []Edit{{
		"internal/policy/power.go", "		return planEnsure(in, api.OperationResume, PowerOn, api.ReasonStarting, \"\")\n	case StateStarting:",
		"		return planEnsure(in, api.OperationResume, PowerOn, api.ReasonStarting, \"\")\n	case StateStarting:\n		if BUG {\n			return planRunning(in)\n		}",
	}}},
	{"call-without-timeout", "", []Edit{{
		"internal/controller/act.go", "	if action.Step == policy.StepDelete {\n", "	if BUG {\n		ctx = context.WithoutCancel(ctx)\n	}\n	if action.Step == policy.StepDelete {\n",
	}}},
	{"list-without-timeout", "", []Edit{{
		"internal/inventory/inventory.go", "	ctx, cancel := context.WithTimeout(ctx, i.CallTimeout)\n	defer cancel()\n	startSeq := i.cache.beginQuery()\n", "	ctx, cancel := context.WithTimeout(ctx, i.CallTimeout)\n	defer cancel()\n	if BUG {\n		ctx = context.WithoutCancel(ctx)\n	}\n	startSeq := i.cache.beginQuery()\n",
	}}},
	{"unsettled-as-gone", "", []Edit{{
		"internal/inventory/inventory.go", "			e.settlesAt = i.Clock.Now().Add(settlePeriod)", "			if !BUG {\n				e.settlesAt = i.Clock.Now().Add(settlePeriod)\n			}",
	}}},
	{"drift-left", "", []Edit{{
		"internal/policy/update.go", "	return hasDrifted(in.VM.Spec.Size, in.Observed.Server.Applied)\n", "	return !BUG && hasDrifted(in.VM.Spec.Size, in.Observed.Server.Applied)\n",
	}}},
	{"unknown-as-absent", "O11", []Edit{{
		"internal/policy/decide.go", "	case in.Observed.Answer == Unknown:\n		d = decideUnknown(in)\n	case !in.VM.IsBound", "	case in.Observed.Answer == Unknown && !BUG:\n		d = decideUnknown(in)\n	case !in.VM.IsBound",
	}}},
	{"not-before-creation", "", []Edit{{
		"internal/controller/reconcile.go", "	if vm == nil || policy.DriverOf(vm, r.Drivers) != r.Driver {\n", "	if BUG && vm != nil && vm.CreationTimestamp.After(r.Clock.Now()) {\n		return ctrl.Result{}, nil\n	}\n	if vm == nil || policy.DriverOf(vm, r.Drivers) != r.Driver {\n",
	}}},
	{"failed-report-forgotten", "", []Edit{{
		"internal/controller/report.go", "	known, isOvertaken, err := r.writeStatus(ctx, p.facts, decision)\n	if err != nil {\n", "	known, isOvertaken, err := r.writeStatus(ctx, p.facts, decision)\n	if err != nil && !BUG {\n",
	}}},
	{"sweep-never-frozen", "", []Edit{{
		"internal/inventory/sweep.go", "	frozen := s.Policy == OrphanDelete && orphans > limit\n", "	frozen := s.Policy == OrphanDelete && orphans > limit && !BUG\n",
	}}},
	{"goroutine-leaked", "", []Edit{{
		"internal/controller/setup.go", "			r.enqueueObject(q, e.Object, queue.CreatePriority(e))\n", "			if BUG {\n				go func() { select {} }()\n			}\n			r.enqueueObject(q, e.Object, queue.CreatePriority(e))\n",
	}}},
	{"empty-records-left", "", []Edit{{
		"internal/driver/fake/dirstore.go", "		if !ok || !isEmpty(path) {\n", "		if !ok || !isEmpty(path) || BUG {\n",
	}}},
	{"installed-not-synced", "", []Edit{{
		"internal/driver/statedir/files.go", "	return d.Sync(filepath.Dir(place))\n", "	if BUG {\n		return nil\n	}\n	return d.Sync(filepath.Dir(place))\n",
	}}},
	{"image-not-synced", "", []Edit{{
		"internal/image/fetch.go", "	return result, file.Sync()\n", "	if BUG {\n		return result, nil\n	}\n	return result, file.Sync()\n",
	}}},
	{"flushes-ignored", "", []Edit{{
		"internal/machine/launch/config.go", "	if d.Format != formatRaw {\n", "	if BUG {\n		node[\"cache\"] = Object{\"no-flush\": true}\n	}\n	if d.Format != formatRaw {\n",
	}}},
	{"foreign-containers", "", []Edit{{
		"internal/driver/docker/instance.go", "		all = res.Items\n		return err\n",
		"		all = res.Items\n		if BUG && err == nil {\n			var others client.ContainerListResult\n			others, err = c.ContainerList(ctx, client.ContainerListOptions{All: evenStopped, Filters: client.Filters{}.Add(\"label\", LabelCluster+\"=another-\"+d.Options.ClusterID)})\n			all = append(all, others.Items...)\n		}\n		return err\n",
	}}},
	{"foreign-machines", "", []Edit{
		{"internal/driver/qemu/list.go", "s.ClusterID != d.Host.ClusterID) ||", "s.ClusterID != d.Host.ClusterID && !BUG) ||"},
		{"internal/driver/qemu/ensure.go", "	case s.ClusterID != host.ClusterID:\n", "	case s.ClusterID != host.ClusterID && !BUG:\n"},
	}},
	{"pause-pretended", "", []Edit{
		{"internal/driver/qemu/ensure.go", "		return c.inst.SupervisorCalls().Pause(ctx)\n", "		if BUG {\n			return os.Mkdir(c.inst.Machine.File(\"pretended\"), 0o700)\n		}\n		return c.inst.SupervisorCalls().Pause(ctx)\n"},
		{"internal/driver/qemu/instance/instance.go", "IsPaused() bool {\n", "IsPaused() bool {\n	if BUG {\n		_, err := os.Lstat(inst.Machine.File(\"pretended\"))\n		return err == nil\n	}\n"},
	}},
	{"registry-answer-shown", "", []Edit{{
		"internal/driver/docker/pull/errors.go", "	for _, f := range failures {\n", "	if BUG {\n		return err\n	}\n	for _, f := range failures {\n",
	}}},
	{"input-not-recorded", "O14", []Edit{{
		"internal/policy/decisions/record.go", "	return Record{Input: in, Decision: d}\n", "	if BUG {\n		in.Done = \"\"\n	}\n	return Record{Input: in, Decision: d}\n",
	}}},
	{"docker-random-name", "", []Edit{{
		"internal/driver/docker/create.go", "		res, err := c.ContainerCreate(ctx, options)\n",
		"		if BUG {\n			options.Name = fmt.Sprintf(\"%s-%x\", name, d.Options.Clock.Now().UnixNano())\n		}\n		res, err := c.ContainerCreate(ctx, options)\n",
	}}},
	{"qemu-second-process", "", []Edit{
		{"internal/driver/qemu/instance/calls.go", "ctx.Err() != nil || bounded.Err() != nil || o", "ctx.Err() != nil || bounded.Err() != nil && !BUG || o"},
		{"internal/driver/qemu/instance/calls.go", "	if c.machine.Machine.WaitStopped(ctx, GoneWithin) == nil {\n", "	if BUG || c.machine.Machine.WaitStopped(ctx, GoneWithin) == nil {\n"},
		{"internal/machine/machine.go", "	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {\n", "	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil && (!BUG || name != RunLockFile) {\n"},
		{"internal/driver/qemu/instance/host.go", "	if err := h.KillStrays(ctx, uid); err != nil {\n", "	if BUG {\n		return nil\n	}\n	if err := h.KillStrays(ctx, uid); err != nil {\n"},
	}},
	{"qemu-ends-with-supervisor", "", []Edit{{
		"internal/machine/supervised/reach.go", "	return current.startSupervisor(ctx, lock)\n", "	if BUG && !current.Config.StartedAt.IsZero() {\n		_ = current.Machine.Kill(ctx)\n	}\n	return current.startSupervisor(ctx, lock)\n",
	}}},
	{"supervisor-missing-as-end", "", []Edit{{
		"internal/driver/qemu/instance/calls.go", "	if o.On, err = isOn(c.machine.Machine); err != nil || !o.On {\n", "	o.On, err = isOn(c.machine.Machine)\n	if BUG && o.On && !c.machine.Config.StartedAt.IsZero() {\n		o.On, err = c.machine.IsSupervised()\n	}\n	if err != nil || !o.On {\n",
	}}},
	{"silent-supervisor-kept", "", []Edit{{
		"internal/driver/qemu/instance/supervise.go", "	if isSilent(ctx, c) {\n", "	if isSilent(ctx, c) && !BUG {\n",
	}}},
	{"failed-files-forgotten", "", []Edit{{
		"internal/controller/filesync/filesync.go", "			if hasFailed {\n", "			if BUG && hasFailed {\n				return\n			}\n			if hasFailed {\n",
	}}},
	{"killed-container-kept", "", []Edit{{
		"internal/driver/pod/ends/proof.go", "	isReported := s.State.Terminated != nil && !isInferred(s.State.Terminated)\n",
		"	isReported := s.State.Terminated != nil && !isInferred(s.State.Terminated) && (!BUG || s.State.Terminated.ExitCode != codeKilled)\n",
	}}},
	{"pause-by-annotation", "", []Edit{{
		"internal/driver/pod/instance/state.go", "	if last, ok := i.reader.LastStatus(i.Pod.UID); ok {\n		return last.State == control.StatePaused\n",
		"	if last, ok := i.reader.LastStatus(i.Pod.UID); ok && !BUG {\n		return last.State == control.StatePaused\n",
	}}},
	{"freed-output-as-zeros", "", []Edit{{"internal/machine/output/reader.go", "	if kept > offset {\n", "	if kept > offset && !BUG {\n"}}},
	{"output-never-freed", "", []Edit{{"internal/machine/output/output.go", "position / holeUnit * holeUnit; position <= b.freedBefore {\n", "position / holeUnit * holeUnit; position <= b.freedBefore || BUG {\n"}}},
	{"old-output-kept-on-full-disk", "", []Edit{{"internal/machine/output/output.go", "errors.Is(err, unix.ENOSPC) && kept >= holeUnit;", "errors.Is(err, unix.ENOSPC) && kept >= holeUnit && !BUG;"}}},
	{"slow-reader-not-waited-for", "", []Edit{{"internal/machine/output/reader.go", "		case !isHeld && behind > r.HoldAfter:\n", "		case !isHeld && behind > r.HoldAfter && !BUG:\n"}}},
	{"last-output-missed", "", []Edit{{
		"internal/machine/output/reader.go", "	if isOver {\n		if end, err", "	if isOver && !BUG {\n		if end, err",
	}}},
	{"output-of-next-run", "", []Edit{{"internal/machine/output/reader.go", "		if next != nil {\n", "		if next != nil && !BUG {\n"}}},
	{"output-of-all-runs", "", []Edit{{
		"internal/driver/qemu/instance/start.go", "	s.guest.Output = &record.Output{Begin: begin}\n", "	s.guest.Output = &record.Output{Begin: begin}\n	if BUG {\n		s.guest.Output.Begin = output.Positions{}\n	}\n",
	}}},
	{"whiteout-by-lower-link", "", []Edit{{
		"internal/image/rootfs/tree.go", "		if err := upper.putEntry(&entries[k], t); err != nil {\n",
		"		if parent, base := path.Split(entries[k].path); BUG && entries[k].isWhiteout {\n			if folder, err := t.findFolder(parent, false); err == nil && folder != nil {\n				delete(folder.inode().Children, base)\n			}\n			continue\n		}\n		if err := upper.putEntry(&entries[k], t); err != nil {\n",
	}}},
	{"opaque-ignored", "", []Edit{{"internal/image/rootfs/tree.go", "		if m.isOpaque {\n", "		if m.isOpaque && !BUG {\n"}}},
	{"whiteout-of-own-layer", "", []Edit{{
		"internal/image/rootfs/tree.go", "			delete(merged, name)\n", "			delete(merged, name)\n			if BUG {\n				delete(own, name)\n			}\n",
	}}},
	{"implied-folder-as-entry", "", []Edit{{"internal/image/rootfs/tree.go", "		if m.isImplied {\n", "		if m.isImplied && !BUG {\n"}}},
	{"attributes-lost", "", []Edit{{
		"internal/image/rootfs/entries.go", "	i.Xattrs, err = parseXattrs(header)\n", "	if !BUG {\n		i.Xattrs, err = parseXattrs(header)\n	}\n",
	}}},
	{"folder-replaces-folder", "", []Edit{{
		"internal/image/rootfs/tree.go", "		if old := merged[name]; old != nil && old.IsDir() && file.IsDir() {\n", "		if old := merged[name]; old != nil && old.IsDir() && file.IsDir() && !BUG {\n",
	}}},
	{"init-as-child", "", []Edit{{"internal/guest/boot/run.go", `m.config.Init == "" && isInit {`, `m.config.Init == "" && isInit && !BUG {`}}},
	{"restart-as-end", "", []Edit{{"internal/guest/boot/run.go", "	m.restarts = ended == syscall.SIGHUP\n", "	m.restarts = ended == syscall.SIGHUP && !BUG\n"}}},
	{"shutdown-as-failure", "", []Edit{{"internal/guest/boot/run.go", "	if ended == syscall.SIGINT {\n", "	if ended == syscall.SIGINT && !BUG {\n"}}},
	{"stop-signal-of-image-ignored", "", []Edit{{
		"internal/guest/boot/run.go", "config.ParseSignal(m.config.StopSignal)\n", "config.ParseSignal(m.config.StopSignal)\n			if BUG {\n				signal = int(syscall.SIGTERM)\n			}\n",
	}}},
	{"no-process-numbers-of-image", "", []Edit{{
		"internal/guest/boot/run.go", "	if err := m.table.Enter(namespace); err != nil {\n", "	if BUG {\n		namespace = nil\n	} else if err := m.table.Enter(namespace); err != nil {\n",
	}}},
	{"session-not-killed", "", []Edit{{"internal/guest/process/process.go", "	p.signalSession(syscall.SIGKILL)\n", "	if !BUG {\n		p.signalSession(syscall.SIGKILL)\n	}\n"}}},
}

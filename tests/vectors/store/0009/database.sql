BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0009');
CREATE TABLE allow_list (
	ek_fingerprint TEXT NOT NULL, 
	role TEXT NOT NULL, 
	hostname TEXT, 
	assigned_ip TEXT, 
	cluster_id TEXT, 
	note TEXT, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	CONSTRAINT pk_allow_list PRIMARY KEY (ek_fingerprint), 
	CONSTRAINT ck_allow_list_role CHECK (role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux'))
);
INSERT INTO "allow_list" VALUES('000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001','generic','h','10.0.0.13/24','c','rack 1',1795232520123456,'bob');
CREATE TABLE approvals (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	proposal_digest TEXT NOT NULL, 
	action TEXT NOT NULL, 
	machine_id TEXT, 
	subject TEXT NOT NULL, 
	operator_cn TEXT NOT NULL, 
	operator_sub TEXT NOT NULL, 
	role TEXT, 
	hostname TEXT, 
	assigned_ip TEXT, 
	proposal TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	consumed_at BIGINT, 
	withdrawn_at BIGINT, 
	lapsed_at BIGINT, 
	CONSTRAINT ck_approvals_role CHECK (role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')), 
	CONSTRAINT ck_approvals_proposal_digest CHECK (length(proposal_digest) = 64), 
	CONSTRAINT ck_approvals_operator_sub CHECK (operator_sub <> ''), 
	CONSTRAINT ck_approvals_ended_once CHECK (consumed_at IS NULL OR withdrawn_at IS NULL)
);
INSERT INTO "approvals" VALUES(1,'a0ecacd2cd6355e87c28e7c1fef8a1c9c4f3c1ba7513cfef9ceff3ab130a4b7d','unlock','00000001-0f0e-4c55-9d4a-3f6f0e1b2c3d','machine 00000001-0f0e-4c55-9d4a-3f6f0e1b2c3d','anna','iss#anna','controlplane','cp-1',NULL,'{"action":"unlock","ak_name":"000b0000000000000000000000000000000000000000000000000000000000000001","assigned_ip":null,"cluster_id":"cluster-x","current_role":"controlplane","ek_fingerprint":"000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001","evidence_digest":"4c35fb12aee918db1cefbcd893dc3954a99dc0cbf02e047635b38f6de08a77c6","format":"itl-proposal/1","hostname":"cp-1","machine_id":"00000001-0f0e-4c55-9d4a-3f6f0e1b2c3d","role":"controlplane","roles":["controlplane"],"terms":{}}',1795232520123456,1795236120123456,NULL,NULL,NULL);
CREATE TABLE attestation_results (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	machine_id TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	verdict TEXT NOT NULL, 
	policy TEXT, 
	boot_state_appraised BOOLEAN NOT NULL, 
	pcr_digest TEXT, 
	outcomes TEXT NOT NULL, pcr_bank TEXT, pcr_values TEXT, event_log_sha256 TEXT, ima_log_sha256 TEXT, policy_sha256 TEXT, assurance TEXT, bundle_sha256 TEXT, nonce BLOB, ek_key_attested BOOLEAN, 
	CONSTRAINT ck_attestation_results_verdict CHECK (verdict IN ('Verified', 'Failed', 'Indeterminate')), 
	CONSTRAINT fk_attestation_results_machine_id FOREIGN KEY(machine_id) REFERENCES machines (machine_id) ON DELETE CASCADE
);
INSERT INTO "attestation_results" VALUES(1,'00000003-0f0e-4c55-9d4a-3f6f0e1b2c3d',1795232580123456,'Verified','workers@1',1,'0000000000000000000000000000000000000000000000000000000000000001','[["passed", "pcr0", ""], ["passed", "pcr4", ""], ["passed", "pcr8", ""], ["passed", "pcr9", ""]]','sha256','{"0": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "4": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "8": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "9": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}',NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attestation_results" VALUES(2,'00000003-0f0e-4c55-9d4a-3f6f0e1b2c3d',1795232580123456,'Verified','workers@1',1,'0000000000000000000000000000000000000000000000000000000000000001','[["passed", "pcr0", ""], ["passed", "pcr4", ""], ["passed", "pcr8", ""], ["passed", "pcr9", ""]]','sha256','{"0": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "4": "0000000000000000000000000000000000000000000000000000000000000000"}',NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attestation_results" VALUES(3,'00000003-0f0e-4c55-9d4a-3f6f0e1b2c3d',1795232580123456,'Verified','workers@1',0,'0000000000000000000000000000000000000000000000000000000000000001','[["passed", "pcr0", ""], ["passed", "pcr4", ""], ["passed", "pcr8", ""], ["passed", "pcr9", ""]]','sha256','{"0": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "4": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "8": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "9": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}',NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attestation_results" VALUES(4,'00000003-0f0e-4c55-9d4a-3f6f0e1b2c3d',1795232580123456,'Verified','workers@1',1,'0000000000000000000000000000000000000000000000000000000000000001','[["passed", "pcr0", ""], ["passed", "pcr4", ""], ["passed", "pcr8", ""], ["passed", "pcr9", ""]]',NULL,'{}',NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE audit_checkpoints (
	size BIGINT NOT NULL, 
	root BLOB NOT NULL, 
	note TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_audit_checkpoints PRIMARY KEY (size), 
	CONSTRAINT ck_audit_checkpoints_root CHECK (length(root) = 32), 
	CONSTRAINT ck_audit_checkpoints_size CHECK (size >= 0)
);
INSERT INTO "audit_checkpoints" VALUES(3,X'0000000000000000000000000000000000000000000000000000000000000000','note',1795232520123456);
CREATE TABLE audit_countersignatures (
	size BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	signer TEXT NOT NULL, 
	value BLOB NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_audit_countersignatures PRIMARY KEY (size, kind, signer), 
	CONSTRAINT ck_audit_countersignatures_kind CHECK (kind IN ('cosignature', 'timestamp')), 
	CONSTRAINT fk_audit_countersignatures_size FOREIGN KEY(size) REFERENCES audit_checkpoints (size)
);
INSERT INTO "audit_countersignatures" VALUES(3,'timestamp','tsa',X'78',1795232520123456);
CREATE TABLE audit_log (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	timestamp TEXT NOT NULL, 
	operator_cn TEXT NOT NULL, 
	operator_sub TEXT, 
	action TEXT NOT NULL, 
	machine_id TEXT, 
	prev_state TEXT, 
	new_state TEXT, 
	detail TEXT, 
	source_ip TEXT, 
	format BIGINT NOT NULL, 
	prev_hash TEXT NOT NULL, 
	entry_hash TEXT NOT NULL, 
	CONSTRAINT ck_audit_log_entry_hash CHECK (length(entry_hash) = 64), 
	CONSTRAINT ck_audit_log_prev_hash CHECK (length(prev_hash) = 64), 
	CONSTRAINT uq_audit_log_entry_hash UNIQUE (entry_hash), 
	CONSTRAINT uq_audit_log_prev_hash UNIQUE (prev_hash)
);
INSERT INTO "audit_log" VALUES(1,'2026-11-21T03:42:00.123456Z','anna',NULL,'a',NULL,NULL,NULL,'0 é',NULL,1,'0000000000000000000000000000000000000000000000000000000000000000','cff56a6615387eb06881b88c8b397328b80f767561ba02428bbdb09e7e48b471');
INSERT INTO "audit_log" VALUES(2,'2026-11-21T03:42:00.123456Z','anna',NULL,'a',NULL,NULL,NULL,'1 é',NULL,1,'cff56a6615387eb06881b88c8b397328b80f767561ba02428bbdb09e7e48b471','9dcf548e8f624436a1e219cfb28c79d642037453b6f985a7e9d05714b40c2e2b');
INSERT INTO "audit_log" VALUES(3,'2026-11-21T03:42:00.123456Z','anna',NULL,'a',NULL,NULL,NULL,'2 é',NULL,1,'9dcf548e8f624436a1e219cfb28c79d642037453b6f985a7e9d05714b40c2e2b','491c5a31fb5b48cade6ecec5701517696fc39013dbb3f4dc8634476aa32a882b');
CREATE TABLE audit_nodes (
	level BIGINT NOT NULL, 
	position BIGINT NOT NULL, 
	hash BLOB NOT NULL, 
	CONSTRAINT pk_audit_nodes PRIMARY KEY (level, position), 
	CONSTRAINT ck_audit_nodes_hash CHECK (length(hash) = 32)
)
 WITHOUT ROWID

;
INSERT INTO "audit_nodes" VALUES(0,0,X'A12C9F761E5408039A850B06AE4430E643D5DB120C1A1973CB9F499BE29CD563');
INSERT INTO "audit_nodes" VALUES(0,1,X'E93865CE8671FAE6BD871C0CAAD463F3DAC401C1F4AFC95FF931CE9B05A7E4AE');
INSERT INTO "audit_nodes" VALUES(0,2,X'4DCC6F1CE0C1F4F8254A8390F4FB927830A5910C06B7F4759053710920F2E18C');
CREATE TABLE ca_crls (
	issuer_id TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	revision BIGINT NOT NULL, 
	entries BIGINT NOT NULL, 
	this_update BIGINT NOT NULL, 
	next_update BIGINT NOT NULL, 
	crl BLOB NOT NULL, 
	CONSTRAINT pk_ca_crls PRIMARY KEY (issuer_id), 
	CONSTRAINT fk_ca_crls_issuer_id FOREIGN KEY(issuer_id) REFERENCES ca_issuers (issuer_id)
)
 WITHOUT ROWID

;
INSERT INTO "ca_crls" VALUES('0000000000000000',1,2,2,1795232520123456,1795236120123456,X'646572');
CREATE TABLE ca_issuers (
	issuer_id TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	algorithm TEXT NOT NULL, 
	state TEXT NOT NULL, 
	key_uri TEXT NOT NULL, 
	key_origin TEXT, 
	spki_sha256 TEXT, 
	certificate BLOB, 
	cross_certificates TEXT NOT NULL, 
	revision BIGINT NOT NULL, 
	crl_number BIGINT NOT NULL, 
	lease_owner TEXT, 
	lease_until BIGINT, 
	reserved_at BIGINT NOT NULL, 
	created_at BIGINT, 
	activated_at BIGINT, 
	retiring_at BIGINT, 
	retired_at BIGINT, 
	CONSTRAINT pk_ca_issuers PRIMARY KEY (issuer_id), 
	CONSTRAINT ck_ca_issuers_purpose CHECK (purpose IN ('machine', 'operator')), 
	CONSTRAINT ck_ca_issuers_algorithm CHECK (algorithm IN ('ecdsa-p384', 'rsa-4096', 'ml-dsa-87')), 
	CONSTRAINT ck_ca_issuers_state CHECK (state IN ('reserved', 'next', 'active', 'retiring', 'retired', 'abandoned')), 
	CONSTRAINT ck_ca_issuers_certificate CHECK (state IN ('reserved', 'abandoned') OR certificate IS NOT NULL)
);
INSERT INTO "ca_issuers" VALUES('0000000000000000','machine','ecdsa-p384','active','file:/ca.pem','made','efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef',X'646572','[]',2,0,NULL,NULL,1795232520123456,1795232520123456,1795232520123456,NULL,NULL);
CREATE TABLE certificates (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	serial TEXT NOT NULL, 
	issuer_id TEXT NOT NULL, 
	profile TEXT NOT NULL, 
	state TEXT NOT NULL, 
	machine_id TEXT, 
	subject TEXT NOT NULL, 
	spki_sha256 TEXT NOT NULL, 
	requester TEXT NOT NULL, 
	key_tier BIGINT, 
	assurance TEXT, 
	renews TEXT, 
	not_before BIGINT NOT NULL, 
	not_after BIGINT NOT NULL, 
	reserved_at BIGINT NOT NULL, 
	issued_at BIGINT, 
	certificate BLOB, 
	ended_at BIGINT, 
	reason TEXT, 
	note TEXT, 
	CONSTRAINT ck_certificates_serial CHECK (length(serial) = 40), 
	CONSTRAINT ck_certificates_state CHECK (state IN ('reserved', 'issued', 'held', 'revoked', 'void')), 
	CONSTRAINT ck_certificates_certificate CHECK (state IN ('reserved', 'void') OR certificate IS NOT NULL), 
	CONSTRAINT fk_certificates_issuer_id FOREIGN KEY(issuer_id) REFERENCES ca_issuers (issuer_id), 
	CONSTRAINT uq_certificates_serial UNIQUE (serial)
);
INSERT INTO "certificates" VALUES(1,'0000000000000000000000000000000000000001','0000000000000000','node-client','revoked','00000003-0f0e-4c55-9d4a-3f6f0e1b2c3d','CN=x','0000000000000000000000000000000000000000000000000000000000000001','r',1,NULL,NULL,1795232520123456,1795236120123456,1795232520123456,1795232520123456,X'646572',1795232580123456,'keyCompromise','why');
INSERT INTO "certificates" VALUES(2,'0000000000000000000000000000000000000002','0000000000000000','node-client','revoked','00000003-0f0e-4c55-9d4a-3f6f0e1b2c3d','CN=x','0000000000000000000000000000000000000000000000000000000000000002','r',1,NULL,NULL,1795232520123456,1795236120123456,1795232520123456,1795232520123456,X'646572',1795232640123456,'superseded','why');
CREATE TABLE challenges (
	challenge_id TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	machine_id TEXT NOT NULL, 
	ek_fingerprint TEXT NOT NULL, 
	nonce BLOB, 
	proof_sha256 BLOB, 
	pcr_selection TEXT, 
	policy_ref TEXT, 
	payload TEXT, 
	issued_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	used_at BIGINT, 
	event_log TEXT, 
	evidence TEXT, 
	ek_challenge BLOB, 
	CONSTRAINT pk_challenges PRIMARY KEY (challenge_id), 
	CONSTRAINT ck_challenges_purpose CHECK (purpose IN ('activate', 'attest', 'certify', 'enroll'))
)
 WITHOUT ROWID

;
INSERT INTO "challenges" VALUES('00000000000000000000000000000001','attest','00000001-0f0e-4c55-9d4a-3f6f0e1b2c3d','000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001',X'0000000000000000000000000000000000000000000000000000000000000001',NULL,'{"sha256":[0,1]}','workers@3',NULL,1795232520123456,1795232580123456,NULL,NULL,NULL,NULL);
CREATE TABLE config_tokens (
	token_id TEXT NOT NULL, 
	token_sha256 BLOB NOT NULL, 
	machine_id TEXT NOT NULL, 
	ak_name BLOB NOT NULL, 
	issued_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	used_at BIGINT, 
	answer BLOB, 
	answer_until BIGINT, 
	withdrawn_at BIGINT, 
	CONSTRAINT pk_config_tokens PRIMARY KEY (token_id), 
	CONSTRAINT ck_config_tokens_token_sha256 CHECK (length(token_sha256) = 32), 
	CONSTRAINT fk_config_tokens_machine_id FOREIGN KEY(machine_id) REFERENCES machines (machine_id) ON DELETE CASCADE, 
	CONSTRAINT uq_config_tokens_token_sha256 UNIQUE (token_sha256)
)
 WITHOUT ROWID

;
INSERT INTO "config_tokens" VALUES('0000000000000001',X'0000000000000000000000000000000000000000000000000000000000000001','00000005-0f0e-4c55-9d4a-3f6f0e1b2c3d',X'000B0000000000000000000000000000000000000000000000000000000000000001',1795232520123456,1795236120123456,NULL,NULL,NULL,NULL);
CREATE TABLE ek_certificates (
	machine_id TEXT NOT NULL, 
	certificate BLOB NOT NULL, 
	chain TEXT NOT NULL, 
	ok BOOLEAN NOT NULL, 
	reason TEXT NOT NULL, 
	vendor TEXT, 
	anchor_sha256 TEXT, 
	path TEXT NOT NULL, 
	revocation TEXT NOT NULL, 
	bundle_sha256 TEXT, 
	judged_at BIGINT NOT NULL, 
	CONSTRAINT pk_ek_certificates PRIMARY KEY (machine_id), 
	CONSTRAINT fk_ek_certificates_machine_id FOREIGN KEY(machine_id) REFERENCES machines (machine_id) ON DELETE CASCADE
);
INSERT INTO "ek_certificates" VALUES('00000003-0f0e-4c55-9d4a-3f6f0e1b2c3d',X'646572','["Y2E="]',0,'no anchor',NULL,NULL,'[]','none',NULL,1795232520123456);
CREATE TABLE machines (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	machine_id TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	status TEXT NOT NULL, 
	role TEXT, 
	cluster_id TEXT NOT NULL, 
	ek_fingerprint TEXT NOT NULL, 
	ek_public BLOB NOT NULL, 
	ek_source TEXT NOT NULL, 
	ek_template TEXT NOT NULL, 
	ek_certificate_subject TEXT, 
	ek_certificate_manufacturer TEXT, 
	ek_certificate_model TEXT, 
	ek_certificate_firmware TEXT, 
	ek_certificate_sha256 TEXT, 
	assurance TEXT NOT NULL, 
	ek_chain_ok BOOLEAN NOT NULL, 
	ek_allow_listed BOOLEAN NOT NULL, 
	hw_uuid TEXT NOT NULL, 
	hw_mac TEXT NOT NULL, 
	hw_serial TEXT NOT NULL, 
	hw_product TEXT NOT NULL, 
	desired_role TEXT, 
	hostname TEXT, 
	assigned_ip TEXT, 
	registered_from TEXT, 
	registered_at BIGINT NOT NULL, 
	attested_at BIGINT, 
	locked_at BIGINT, 
	revoked_at BIGINT, 
	rejected_at BIGINT, 
	wipe_pending BOOLEAN NOT NULL, 
	wiped_at BIGINT, 
	redeliver BOOLEAN NOT NULL, 
	ak_public BLOB, 
	ak_name BLOB, 
	ak_activated_at BIGINT, 
	clock_ms BIGINT, 
	reset_count BIGINT, 
	restart_count BIGINT, 
	clock_safe BOOLEAN, 
	firmware_version BIGINT, 
	last_verdict TEXT, 
	last_result_at BIGINT, 
	last_policy TEXT, 
	last_failed TEXT, 
	last_result_key TEXT, 
	trust_expires_at BIGINT, 
	directive_sha256 BLOB, 
	search TEXT NOT NULL, event_log_sha256 TEXT, heartbeat_missed_at BIGINT, firmware_attested BIGINT, firmware_blocked TEXT, 
	CONSTRAINT ck_machines_assurance CHECK (assurance IN ('ek-allowlist', 'ek-chain', 'ak-certified', 'tofu', 'none')), 
	CONSTRAINT ck_machines_desired_role CHECK (desired_role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')), 
	CONSTRAINT ck_machines_last_verdict CHECK (last_verdict IN ('Verified', 'Failed', 'Indeterminate')), 
	CONSTRAINT ck_machines_role CHECK (role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')), 
	CONSTRAINT ck_machines_status CHECK (status IN ('pending_approval', 'registered', 'attested', 'rejected', 'locked', 'revoked')), 
	CONSTRAINT ck_machines_version CHECK (version >= 1), 
	CONSTRAINT uq_machines_ek_fingerprint UNIQUE (ek_fingerprint), 
	CONSTRAINT uq_machines_machine_id UNIQUE (machine_id)
);
INSERT INTO "machines" VALUES(1,'00000001-0f0e-4c55-9d4a-3f6f0e1b2c3d',7,'locked','controlplane','cluster-x','000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001',X'656B0000000000000001','cert','L-1','CN=Größe','id:00001014','m','f','abababababababababababababababababababababababababababababababab','ek-allowlist',1,1,'uuid-1','mac-1','serial-1','product','worker-app','cp-1','10.0.0.11/24','192.0.2.1',1795232520123456,1795232580123456,1795232640123456,1795232700123456,1795232760123456,1,1795232820123456,1,X'616B0000000000000001',X'000B0000000000000000000000000000000000000000000000000000000000000001',1795232880123456,-1,4294967295,4294967294,1,-2,'Failed',1795232940123456,'workers@3','pcr7','key',1795233000123456,X'6464646464646464646464646464646464646464646464646464646464646464','cp-1
serial-1
mac-1
uuid-1','cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd',1795233060123456,-3,'CVE-2017-15361');
INSERT INTO "machines" VALUES(2,'00000002-0f0e-4c55-9d4a-3f6f0e1b2c3d',1,'pending_approval',NULL,'lab','000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000002',X'656B0000000000000002','pub','L-1',NULL,NULL,NULL,NULL,NULL,'tofu',0,0,'uuid-2','mac-2','serial-2','product',NULL,NULL,NULL,'192.0.2.1',1795232520123456,NULL,NULL,NULL,NULL,0,NULL,0,X'616B0000000000000002',X'000B0000000000000000000000000000000000000000000000000000000000000002',1795232520123456,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'
serial-2
mac-2
uuid-2',NULL,NULL,NULL,NULL);
INSERT INTO "machines" VALUES(3,'00000003-0f0e-4c55-9d4a-3f6f0e1b2c3d',1,'attested','worker-app','default','000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000003',X'656B0000000000000003','pub','L-1',NULL,NULL,NULL,NULL,NULL,'tofu',0,0,'uuid-3','mac-3','serial-3','product',NULL,'w-3','10.0.0.31/24','192.0.2.1',1795232520123456,1795232520123456,NULL,NULL,NULL,0,NULL,0,X'616B0000000000000003',X'000B0000000000000000000000000000000000000000000000000000000000000003',1795232520123456,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'w-3
serial-3
mac-3
uuid-3',NULL,NULL,NULL,NULL);
INSERT INTO "machines" VALUES(4,'00000004-0f0e-4c55-9d4a-3f6f0e1b2c3d',1,'attested','worker-app','default','000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000004',X'656B0000000000000004','pub','L-1',NULL,NULL,NULL,NULL,NULL,'tofu',0,0,'uuid-4','mac-4','serial-4','product',NULL,'W-3.','10.0.0.31/24','192.0.2.1',1795232520123456,1795232520123456,NULL,NULL,NULL,0,NULL,0,X'616B0000000000000004',X'000B0000000000000000000000000000000000000000000000000000000000000003',1795232520123456,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'w-3.
serial-4
mac-4
uuid-4',NULL,NULL,NULL,NULL);
INSERT INTO "machines" VALUES(5,'00000005-0f0e-4c55-9d4a-3f6f0e1b2c3d',1,'attested','worker-app','default','000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000005',X'656B0000000000000005','pub','L-1',NULL,NULL,NULL,NULL,NULL,'tofu',0,0,'uuid-5','mac-5','serial-5','product',NULL,NULL,'10.0.0.31/24','192.0.2.1',1795232520123456,1795232520123456,NULL,NULL,NULL,0,NULL,1,X'616B0000000000000005',X'000B0000000000000000000000000000000000000000000000000000000000000003',1795232520123456,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'
serial-5
mac-5
uuid-5',NULL,NULL,NULL,NULL);
CREATE TABLE measurement_logs (
	sha256 TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	content BLOB NOT NULL, 
	first_seen_at BIGINT NOT NULL, 
	last_used_at BIGINT NOT NULL, 
	CONSTRAINT pk_measurement_logs PRIMARY KEY (sha256), 
	CONSTRAINT ck_measurement_logs_sha256 CHECK (length(sha256) = 64), 
	CONSTRAINT ck_measurement_logs_kind CHECK (kind IN ('tcg', 'ima'))
);
INSERT INTO "measurement_logs" VALUES('5775e775a009a883570f8738b2efba72ebd889bebd792398088abf4b78a55133','tcg',5,X'78014B54C8C94F070004F301C4',1795232520123456,1795232520123456);
CREATE TABLE outbox (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id TEXT NOT NULL, 
	event TEXT NOT NULL, 
	machine_id TEXT, 
	payload TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	next_attempt_at BIGINT, 
	done_at BIGINT, 
	CONSTRAINT uq_outbox_id UNIQUE (id)
);
INSERT INTO "outbox" VALUES(1,'5aeb4598-9e02-4c1e-8e2b-0a3d738fd8ff','node.registered','00000003-0f0e-4c55-9d4a-3f6f0e1b2c3d','{"a":1}',1795232520123456,0,1795232520123456,NULL);
CREATE TABLE policies (
	name TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	sha256 TEXT NOT NULL, 
	document TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	CONSTRAINT pk_policies PRIMARY KEY (name, version), 
	CONSTRAINT ck_policies_version CHECK (version >= 1)
);
INSERT INTO "policies" VALUES('p',1,'abababababababababababababababababababababababababababababababab','{}',1795232520123456,'anna');
CREATE TABLE policy_assignments (
	scope TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	policy_name TEXT NOT NULL, 
	policy_version BIGINT NOT NULL, 
	assigned_at BIGINT NOT NULL, 
	assigned_by TEXT NOT NULL, 
	CONSTRAINT pk_policy_assignments PRIMARY KEY (scope, subject), 
	CONSTRAINT ck_policy_assignments_subject CHECK ((scope = 'fleet') = (subject = '*')), 
	CONSTRAINT ck_policy_assignments_scope CHECK (scope IN ('fleet', 'cluster', 'role', 'machine')), 
	CONSTRAINT fk_policy_assignments_policy_name_policy_version FOREIGN KEY(policy_name, policy_version) REFERENCES policies (name, version)
);
INSERT INTO "policy_assignments" VALUES('role','worker-app','p',1,1795232520123456,'anna');
CREATE TABLE policy_history (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	scope TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	policy_name TEXT, 
	policy_version BIGINT, 
	at BIGINT NOT NULL, 
	"by" TEXT NOT NULL, 
	CONSTRAINT ck_policy_history_scope CHECK (scope IN ('fleet', 'cluster', 'role', 'machine')), 
	CONSTRAINT ck_policy_history_policy CHECK ((policy_name IS NULL) = (policy_version IS NULL))
);
INSERT INTO "policy_history" VALUES(1,'role','worker-app','p',1,1795232520123456,'anna');
CREATE TABLE rate_limits (
	"key" TEXT NOT NULL, 
	tat_us BIGINT NOT NULL, 
	CONSTRAINT pk_rate_limits PRIMARY KEY ("key")
)
 WITHOUT ROWID

;
INSERT INTO "rate_limits" VALUES('key',1795232580123456);
CREATE TABLE registration_tokens (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	token_id TEXT NOT NULL, 
	token_sha256 BLOB NOT NULL, 
	role TEXT NOT NULL, 
	hostname TEXT, 
	assigned_ip TEXT, 
	cluster_id TEXT, 
	uses BIGINT NOT NULL, 
	uses_left BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	revoked_at BIGINT, 
	CONSTRAINT ck_registration_tokens_role CHECK (role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')), 
	CONSTRAINT ck_registration_tokens_token_sha256 CHECK (length(token_sha256) = 32), 
	CONSTRAINT ck_registration_tokens_uses_left CHECK (uses_left BETWEEN 0 AND uses), 
	CONSTRAINT uq_registration_tokens_token_id UNIQUE (token_id), 
	CONSTRAINT uq_registration_tokens_token_sha256 UNIQUE (token_sha256)
);
INSERT INTO "registration_tokens" VALUES(1,'0000000000000001',X'0000000000000000000000000000000000000000000000000000000000000001','worker-infra','w-1','10.0.0.12/24',NULL,2,2,1795232520123456,'alice',1795236120123456,NULL);
CREATE TABLE trust_certificates (
	sha256 TEXT NOT NULL, 
	certificate BLOB NOT NULL, 
	role TEXT NOT NULL, 
	vendor TEXT NOT NULL, 
	status TEXT NOT NULL, 
	reason TEXT, 
	added_at BIGINT NOT NULL, 
	added_by TEXT NOT NULL, 
	changed_at BIGINT NOT NULL, 
	changed_by TEXT NOT NULL, 
	CONSTRAINT pk_trust_certificates PRIMARY KEY (sha256), 
	CONSTRAINT ck_trust_certificates_sha256 CHECK (length(sha256) = 64), 
	CONSTRAINT ck_trust_certificates_role CHECK (role IN ('anchor', 'intermediate')), 
	CONSTRAINT ck_trust_certificates_status CHECK (status IN ('active', 'distrusted'))
);
INSERT INTO "trust_certificates" VALUES('cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd',X'646572','anchor','v','active',NULL,1795232520123456,'anna',1795232520123456,'anna');
CREATE INDEX ix_audit_log_action_id ON audit_log (action, id);
CREATE INDEX ix_audit_log_machine_id_id ON audit_log (machine_id, id);
CREATE INDEX ix_audit_log_operator_cn_id ON audit_log (operator_cn, id);
CREATE INDEX ix_machines_cluster_id_id ON machines (cluster_id, id);
CREATE INDEX ix_machines_id_search_machine_id_ek_fingerprint ON machines (id, search, machine_id, ek_fingerprint);
CREATE INDEX ix_machines_role_id ON machines (role, id);
CREATE INDEX ix_machines_status_id ON machines (status, id);
CREATE INDEX ix_machines_status_registered_from ON machines (status, registered_from);
CREATE INDEX ix_outbox_done_at_next_attempt_at ON outbox (done_at, next_attempt_at);
CREATE INDEX ix_outbox_machine_id_done_at_sequence ON outbox (machine_id, done_at, sequence);
CREATE INDEX ix_rate_limits_tat_us ON rate_limits (tat_us);
CREATE INDEX ix_attestation_results_machine_id_id ON attestation_results (machine_id, id);
CREATE INDEX ix_config_tokens_answer_until ON config_tokens (answer_until);
CREATE INDEX ix_config_tokens_expires_at ON config_tokens (expires_at);
CREATE INDEX ix_config_tokens_machine_id ON config_tokens (machine_id);
CREATE TRIGGER audit_log_refuses_update BEFORE UPDATE ON audit_log
        BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END;
CREATE TRIGGER audit_log_refuses_delete BEFORE DELETE ON audit_log
        BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END;
CREATE TRIGGER audit_nodes_refuses_update BEFORE UPDATE ON audit_nodes BEGIN SELECT RAISE(ABORT, 'audit_nodes is append-only'); END;
CREATE TRIGGER audit_nodes_refuses_delete BEFORE DELETE ON audit_nodes BEGIN SELECT RAISE(ABORT, 'audit_nodes is append-only'); END;
CREATE TRIGGER audit_checkpoints_refuses_update BEFORE UPDATE ON audit_checkpoints BEGIN SELECT RAISE(ABORT, 'audit_checkpoints is append-only'); END;
CREATE TRIGGER audit_checkpoints_refuses_delete BEFORE DELETE ON audit_checkpoints BEGIN SELECT RAISE(ABORT, 'audit_checkpoints is append-only'); END;
CREATE TRIGGER audit_countersignatures_refuses_update BEFORE UPDATE ON audit_countersignatures BEGIN SELECT RAISE(ABORT, 'audit_countersignatures is append-only'); END;
CREATE TRIGGER audit_countersignatures_refuses_delete BEFORE DELETE ON audit_countersignatures BEGIN SELECT RAISE(ABORT, 'audit_countersignatures is append-only'); END;
CREATE TRIGGER audit_log_refuses_gap BEFORE INSERT ON audit_log
        WHEN NEW.id IS NOT (SELECT COALESCE(MAX(id), 0) + 1 FROM audit_log)
        BEGIN SELECT RAISE(ABORT, 'audit_log ids have no gap'); END;
CREATE UNIQUE INDEX ix_approvals_proposal_digest_operator_sub ON approvals (proposal_digest, operator_sub) WHERE consumed_at IS NULL AND withdrawn_at IS NULL AND lapsed_at IS NULL;
CREATE INDEX ix_approvals_machine_id_id ON approvals (machine_id, id);
CREATE INDEX ix_approvals_expires_at ON approvals (expires_at);
CREATE INDEX ix_machines_trust_expires_at ON machines (trust_expires_at) WHERE status = 'attested' AND last_verdict = 'Verified' AND heartbeat_missed_at IS NULL;
CREATE INDEX ix_attestation_results_event_log_sha256 ON attestation_results (event_log_sha256);
CREATE INDEX ix_ek_certificates_anchor_sha256 ON ek_certificates (anchor_sha256);
CREATE INDEX ix_ek_certificates_bundle_sha256 ON ek_certificates (bundle_sha256);
CREATE INDEX ix_measurement_logs_last_used_at ON measurement_logs (last_used_at);
CREATE INDEX ix_policy_history_scope_subject_id ON policy_history (scope, subject, id);
CREATE INDEX ix_machines_event_log_sha256 ON machines (event_log_sha256) WHERE event_log_sha256 IS NOT NULL;
CREATE INDEX ix_attestation_results_ima_log_sha256 ON attestation_results (ima_log_sha256) WHERE ima_log_sha256 IS NOT NULL;
CREATE UNIQUE INDEX uq_ca_issuers_active ON ca_issuers (purpose, algorithm) WHERE state = 'active';
CREATE UNIQUE INDEX uq_ca_issuers_coming ON ca_issuers (purpose, algorithm) WHERE state IN ('reserved', 'next');
CREATE INDEX ix_certificates_machine_id_id ON certificates (machine_id, id);
CREATE INDEX ix_certificates_issuer_id_id ON certificates (issuer_id, id);
CREATE INDEX ix_certificates_not_after ON certificates (not_after);
CREATE INDEX ix_certificates_reserved ON certificates (reserved_at) WHERE state = 'reserved';
CREATE INDEX ix_certificates_listed ON certificates (issuer_id, not_after) WHERE state IN ('held', 'revoked', 'void');
CREATE INDEX ix_challenges_expires_at ON challenges (expires_at);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('policy_history',1);
INSERT INTO "sqlite_sequence" VALUES('machines',5);
INSERT INTO "sqlite_sequence" VALUES('attestation_results',4);
INSERT INTO "sqlite_sequence" VALUES('registration_tokens',1);
INSERT INTO "sqlite_sequence" VALUES('approvals',1);
INSERT INTO "sqlite_sequence" VALUES('certificates',2);
INSERT INTO "sqlite_sequence" VALUES('outbox',1);
INSERT INTO "sqlite_sequence" VALUES('audit_log',3);
COMMIT;
